"""Ends a program that fills the disk: what all files of its sandbox take is counted when the disk gets emptier.

No quota is needed, so it is not exact: a program is ended within a second after it has passed the limit.
"""

import asyncio
import os
import time
from pathlib import Path
from typing import Final

DISK_LOOK_SECONDS: Final = 0.5
COUNT_SECONDS: Final = 30.0
"""The longest time without a count."""
SHARE: Final = 16
"""When the free space has shrunk by this part of the limit, files are counted again: others use the disk, too."""
BLOCK_BYTES: Final = 512


async def until_too_much(folder: Path, first: int | None, limit_bytes: int) -> int:
    """Wait until the files in a folder take more than the limit; return how many bytes they take.

    Files that were removed but are still open count too. `first`: the pid of the first process of the namespace whose processes have them.
    """
    counted_at, free_then = 0.0, 0
    while True:
        free = await asyncio.to_thread(_free, folder)
        if free_then - free >= limit_bytes // SHARE or time.monotonic() - counted_at > COUNT_SECONDS:
            used = await asyncio.to_thread(_used, folder, first)
            if used > limit_bytes:
                return used
            counted_at, free_then = time.monotonic(), free
        free_then = max(free_then, free)
        await asyncio.sleep(DISK_LOOK_SECONDS)


def _free(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def _used(folder: Path, first: int | None) -> int:
    """Return the bytes that files take, each counted once. Blocks."""
    blocks: dict[tuple[int, int], int] = {}
    for above, folders, files, descriptor in os.fwalk(folder, follow_symlinks=False):
        del above
        for name in (*folders, *files):
            try:
                status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            except OSError:
                continue
            blocks[status.st_dev, status.st_ino] = status.st_blocks
    return BLOCK_BYTES * (sum(blocks.values()) + sum(_removed(folder, first).values()))


def _removed(folder: Path, first: int | None) -> dict[tuple[int, int], int]:
    """Return the blocks of files on the folder's disk that processes of a namespace have open although they were removed."""
    found: dict[tuple[int, int], int] = {}
    try:
        namespace, disk = (Path(f"/proc/{first}/ns/pid").readlink(), folder.stat().st_dev)
    except OSError:
        return found
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "ns/pid").readlink() != namespace:
                continue
            opened = list((process / "fd").iterdir())
        except OSError:
            continue
        for one in opened:
            try:
                status = one.stat()
            except OSError:
                continue
            if not status.st_nlink and status.st_dev == disk:
                found[status.st_dev, status.st_ino] = status.st_blocks
    return found
