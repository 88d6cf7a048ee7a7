"""Shared by the installers of bundles: running a program to its end, and folders that appear complete or not at all."""

import asyncio
import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from evener.harnesses.port import HarnessMissing

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


@contextmanager
def appearing(bundle: Path) -> Iterator[Path]:
    """Yield a folder to build the bundle in. The folder becomes the bundle when the block ends without an error."""
    bundle.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=bundle.parent, prefix=f".{bundle.name}-", ignore_cleanup_errors=True) as making:
        made = Path(making) / "bundle"
        yield made
        try:
            made.rename(bundle)
        except OSError:  # another process was faster
            if not bundle.is_dir():
                raise
