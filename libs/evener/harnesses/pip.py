"""PyPI packages as bundles: a Python with exactly what a lock file says, installed once.

A bundle is moved after it was built, and the scripts in its `bin` name the old place. Run modules with its Python (`-m`) instead.
"""

import asyncio
import os
import shutil
from pathlib import Path
from typing import Final

from msgspec import Struct

from evener.harnesses.install import appearing, installed, locked, run
from evener.harnesses.port import HarnessMissing
from evener.harnesses.python_tree import bring_python, brings_python

PYTHON_VERSION: Final = "3.12"
"""The Python version that today's harnesses on PyPI run on. Some of their dependencies lack wheels for older and newer ones."""
FOLDERS: Final = (
    ("PYENV_ROOT", "~/.pyenv", f"versions/{PYTHON_VERSION}.*"),
    ("UV_PYTHON_INSTALL_DIR", "~/.local/share/uv/python", f"cpython-{PYTHON_VERSION}.*"),
)
"""Where pyenv and uv keep Pythons that are not in PATH: a variable, its default, and a path below it."""
PIP_QUIETLY: Final = ("--quiet", "--no-input", "--disable-pip-version-check", "--retries=5")
PIP_AS_LOCKED: Final = ("--no-deps", "--require-hashes")
FROM_SOURCE: Final = ("--no-build-isolation", "--use-pep517")
"""Options that build packages with the setuptools that the lock file installed."""


class PypiPackage(Struct, frozen=True, kw_only=True):
    """A pinned PyPI package."""

    name: str
    version: str
    lock: Path
    """The requirements: version and hashes of every dependency on every machine type, without the address of an index."""
    beside: tuple[str, ...] = ()
    """Other packages of the same version that are installed too."""
    sources: tuple[str, ...] = ()
    """The packages among these that have no wheels."""

    @property
    def pinned(self) -> str:
        """The package and version, with its source."""
        return f"pypi:{self.name}@{self.version}"

    @property
    def locked(self) -> str:
        """The version, with a short digest of the lock files."""
        return locked(self.version, *self.locks)

    @property
    def locks(self) -> tuple[Path, ...]:
        """The lock file, and the one of its source packages if there are any."""
        return (self.lock, self.lock.with_name("sources.txt")) if self.sources else (self.lock,)

    async def install(self, cache: Path, harness: str) -> Path:
        """Return the bundle `<cache>/<harness>-<version+lock>`, which is built at first use. Raises HarnessMissing."""
        bundle = cache / f"{harness}-{self.locked}"
        if not await installed(bundle):
            python = await python_for(harness)
            async with appearing(bundle) as made:
                await _checked(f"{harness} needs the venv module of {python}", python, "-m", "venv", str(made))
                for lock, how in zip(self.locks, (("--only-binary", ":all:"), FROM_SOURCE), strict=False):
                    asked = (python_of(made), "-m", "pip", "install", *PIP_QUIETLY, *PIP_AS_LOCKED, *how, "-r", str(lock))
                    await _checked(f"pip could not install {self.name}=={self.version}", *asked)
                if brings_python():
                    await bring_python(python, made)
        return bundle


def python_of(bundle: Path) -> str:
    """Return the Python program that runs what is in the bundle."""
    return str(bundle / "bin" / "python")


def pythons() -> list[str]:
    """Return the programs that may be the wanted Python, the most likely first."""
    in_path = shutil.which(f"python{PYTHON_VERSION}")
    folders = [Path(os.environ.get(variable, default)).expanduser() / below for variable, default, below in FOLDERS]
    kept = [str(path) for folder in folders for path in sorted(folder.parent.glob(f"{folder.name}/bin/python{PYTHON_VERSION}"))]
    return [in_path, *kept] if in_path else kept


async def python_for(harness: str) -> str:
    """Return the program of a Python that can make bundles. Raises HarnessMissing."""
    for program in await asyncio.to_thread(pythons):
        code, _ = await run(program, "-c", "import ensurepip, venv")  # a shim of pyenv is there and does not run
        if code == 0:
            return program
    msg = f"{harness} needs Python {PYTHON_VERSION} with its venv module, and neither PATH nor pyenv nor uv has it"
    raise HarnessMissing(msg)


async def _checked(otherwise: str, *argv: str) -> None:
    code, output = await run(*argv)
    if code != 0:
        said = output.partition("ERROR: ")[2][:800] or output.strip()[-800:]
        msg = f"{otherwise}: {said.strip()}"
        raise HarnessMissing(msg)
