"""Shared by the installers of bundles: running a program to its end, and folders that appear complete or not at all."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from evener.harnesses.port import HarnessMissing
from evener.runtime.folders import temporary_folder

INSTALL_SECONDS: Final = 600.0


def locked(version: str, *locks: Path) -> str:
    """Return a version with a short digest of its lock files: `0.169.0+1f2e3d4c`. A lock file may still be missing."""
    digest = hashlib.sha256(b"".join(lock.read_bytes() for lock in locks if lock.exists()))
    return f"{version}+{digest.hexdigest()[:8]}"


async def run(*argv: str) -> tuple[int, str]:
    """Run a program to its end, or kill it at the time limit; return its exit code and output. Raises HarnessMissing."""
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


@asynccontextmanager
async def appearing(bundle: Path) -> AsyncIterator[Path]:
    """Yield a folder to build the bundle in. The folder becomes the bundle when the block ends without an error."""
    bundle.parent.mkdir(parents=True, exist_ok=True)
    async with temporary_folder(f".{bundle.name}-", bundle.parent) as making:
        made = making / "bundle"
        yield made
        _become(bundle, made)


def _become(bundle: Path, made: Path) -> None:
    try:
        made.rename(bundle)
    except OSError:  # another process was faster
        if not bundle.is_dir():
            raise
