"""Trees that agents leave, and what removes them: pytest's own cleaning would break on some of them."""

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

import pytest

from evener.sandboxes.folders import Deadline, opened, remove

NOBODY = 65_534
SECONDS = 60.0
MEMORY = Path("/dev/shm")  # noqa: S108 - a mount point


@contextmanager
def scratch(owner: int | None = None) -> Iterator[Path]:
    """Make a folder that every user reaches, in memory where there is room for it, and remove it however deep it became."""
    folder = Path(mkdtemp(prefix="evener-test-", dir=MEMORY if MEMORY.is_dir() else None))
    if owner is not None:
        os.chown(folder, owner, owner)
    try:
        yield folder
    finally:
        with opened(folder.parent) as parent:
            remove(folder.name, parent, Deadline(SECONDS))


def dig(folder: Path, depth: int) -> None:
    """Make folders `d/d/d/...` in a folder, beyond what a path can name."""
    current = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=current)
        below = os.open("d", os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = below
    os.close(current)


def make_specials(folder: Path) -> None:
    """Make a pipe and a socket."""
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))


@contextmanager
def plain_user() -> Iterator[None]:
    """Have no privileges in this block, whoever runs the tests."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def mounted(source: Path, target: Path) -> Iterator[None]:
    """Mount a folder on another one; the test is skipped where that is not allowed."""
    if subprocess.run(["mount", "--bind", source, target], capture_output=True, check=False).returncode != 0:
        pytest.skip("no right to mount")
    try:
        yield
    finally:
        unmount_below(target.parent)


def unmount_below(folder: Path) -> None:
    """Unmount what is mounted below a folder, wherever in it the mount point was moved to."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        if (target := line.split()[1]).startswith(f"{folder}/"):
            subprocess.run(["umount", target], capture_output=True, check=False)
