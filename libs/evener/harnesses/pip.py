"""PyPI packages as bundles: a virtual environment with exact versions of what is named, installed once.

A bundle has moved since it was made, and the scripts in its `bin` name the old place: run modules with its Python (`-m`).
"""

import asyncio
import os
import shutil
from pathlib import Path
from typing import Final

from msgspec import Struct

from evener.harnesses.installing import appearing, run
from evener.harnesses.port import HarnessMissing

PYTHON: Final = "3.12"
"""What today's harnesses on PyPI run on; older and newer ones lack wheels for some of their dependencies."""
FOLDERS: Final = (
    ("PYENV_ROOT", "~/.pyenv", f"versions/{PYTHON}.*"),
    ("UV_PYTHON_INSTALL_DIR", "~/.local/share/uv/python", f"cpython-{PYTHON}.*"),
)
"""Where pyenv and uv keep Pythons that are not in PATH: a variable, its default, and what stands below it."""
QUIETLY: Final = ("--quiet", "--no-input", "--disable-pip-version-check", "--retries=5")


class Package(Struct, frozen=True, kw_only=True):
    """A pinned PyPI package."""

    name: str
    version: str
    beside: tuple[str, ...] = ()
    """Other packages of the same version that are installed with it."""

    @property
    def pinned(self) -> str:
        """What is installed, with where from."""
        return f"pypi:{self.name}@{self.version}"


async def install(cache: Path, harness: str, package: Package) -> Path:
    """Return the bundle `<cache>/<harness>-<version>`, made at first use. Raises HarnessMissing saying what is missing."""
    bundle = cache / f"{harness}-{package.version}"
    if not await asyncio.to_thread(bundle.is_dir):
        python = await _python(harness)
        with appearing(bundle) as made:
            await _checked(f"{harness} needs the venv module of {python}", python, "-m", "venv", str(made))
            wanted = [f"{name}=={package.version}" for name in (package.name, *package.beside)]
            await _checked(f"pip could not install {wanted[0]}", python_of(made), "-m", "pip", "install", *QUIETLY, *wanted)
    return bundle


def python_of(bundle: Path) -> str:
    """Return the Python program that finds what is in the bundle."""
    return str(bundle / "bin" / "python")


def pythons() -> list[str]:
    """Return the programs that may be the Python that is wanted, the likeliest first."""
    in_path = shutil.which(f"python{PYTHON}")
    folders = [Path(os.environ.get(variable, default)).expanduser() / below for variable, default, below in FOLDERS]
    kept = [str(path) for folder in folders for path in sorted(folder.parent.glob(f"{folder.name}/bin/python{PYTHON}"))]
    return [in_path, *kept] if in_path else kept


async def _python(harness: str) -> str:
    for program in await asyncio.to_thread(pythons):
        code, _ = await run(program, "-c", "import ensurepip, venv")  # a shim of pyenv is there and does not run
        if code == 0:
            return program
    msg = f"{harness} needs Python {PYTHON} with its venv module, and neither PATH nor pyenv nor uv has it"
    raise HarnessMissing(msg)


async def _checked(otherwise: str, *argv: str) -> None:
    code, output = await run(*argv)
    if code != 0:
        msg = f"{otherwise}: {output.strip()[-800:]}"
        raise HarnessMissing(msg)
