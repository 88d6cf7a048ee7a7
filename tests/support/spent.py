"""Machines at their limits."""

import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def next_descriptor() -> int:
    """Return the descriptor that the next file to be opened gets."""
    lowest_free = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest_free)
    return lowest_free


@contextmanager
def descriptors_used_up(below: int | None = None) -> Iterator[None]:
    """Let this process open nothing more in this block: neither `below` (an earlier `next_descriptor`), if it is given, nor above."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next_descriptor() if below is None else below, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def disk_of(folder: Path, size_bytes: int) -> Iterator[Path]:
    """Mount a real file system of a size, in memory, in a new folder; the test is skipped where that is not allowed."""
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", folder], capture_output=True, check=False).returncode:
        pytest.skip("no right to mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
