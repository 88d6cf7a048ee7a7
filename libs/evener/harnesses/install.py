"""Shared by the installers of bundles: running a program to its end, and folders that appear complete and stay as they are."""

import asyncio
import hashlib
import os
import shutil
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from secrets import token_hex
from typing import Final

import structlog

from evener.harnesses.port import HarnessMissing
from evener.runtime.folders import temporary_folder

INSTALL_SECONDS: Final = 600.0
DIGEST_FILE: Final = ".sha256"
"""The file in a bundle that holds the digest of everything else in it."""
log = structlog.get_logger()


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
    """Yield a folder to build the bundle in. It becomes the bundle, which every user can read, if the block ends well."""
    bundle.parent.mkdir(parents=True, exist_ok=True)
    async with temporary_folder(f".{bundle.name}-", bundle.parent) as making:
        made = making / "bundle"
        yield made
        await asyncio.to_thread(seal, made)
        _become(bundle, made)


async def installed(bundle: Path) -> bool:
    """Return whether the bundle is there as it was installed. One that has changed since is removed."""
    if not await asyncio.to_thread(bundle.is_dir):
        return False
    if await asyncio.to_thread(is_sealed, bundle):
        return True
    log.warning("bundle_changed", bundle=str(bundle), mend="it is installed again")
    await asyncio.to_thread(_remove, bundle)
    return False


def seal(bundle: Path) -> None:
    """Let every user read the files of a bundle, and note their digest. Blocks."""
    for path in (bundle, *bundle.rglob("*")):
        mode = path.lstat().st_mode
        if not stat.S_ISLNK(mode):
            path.chmod(stat.S_IMODE(mode) | (0o555 if mode & 0o100 else 0o444))
    (bundle / DIGEST_FILE).write_text(_digest(bundle))


def is_sealed(bundle: Path) -> bool:
    """Return whether the files of a bundle are what they were when it was sealed. Blocks: it reads them all."""
    try:
        return (bundle / DIGEST_FILE).read_text() == _digest(bundle)
    except OSError:
        return False


def _digest(bundle: Path) -> str:
    """Return the digest of all names, permissions to run, contents and links."""
    digest = hashlib.sha256()
    for folder, folders, files in os.walk(bundle):
        folders.sort()
        for name in sorted((*folders, *files)):
            path = Path(folder, name)
            if path == bundle / DIGEST_FILE:
                continue
            mode = path.lstat().st_mode
            digest.update(f"{path.relative_to(bundle)}\0{stat.S_IFMT(mode)}\0{mode & 0o111}\0".encode(errors="surrogateescape"))
            if stat.S_ISLNK(mode):
                digest.update(os.fsencode(path.readlink()) + b"\0")
            elif stat.S_ISREG(mode):
                with path.open("rb") as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _remove(bundle: Path) -> None:
    """Remove a bundle: at once from its place, then its files."""
    aside = bundle.with_name(f".{bundle.name}-{token_hex(8)}")
    bundle.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def _become(bundle: Path, made: Path) -> None:
    try:
        made.rename(bundle)
    except OSError:  # another process was faster
        if not bundle.is_dir():
            raise
