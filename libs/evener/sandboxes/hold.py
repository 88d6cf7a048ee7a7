"""Holds the folder of a backend: one living process has it."""

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Final

from evener.sandboxes.folders import Deadline, opened, remove
from evener.sandboxes.port import SandboxHeld

SANDBOX_LOCK: Final = ".held"
LOCK_SECONDS: Final = 2.0
"""How long the removal of something else in the place of the lock file may take."""


@contextmanager
def held(root: Path) -> Iterator[None]:
    """Lock the folder. The kernel releases the lock when this process dies."""
    root.mkdir(parents=True, exist_ok=True)
    with opened(root) as folder, FileIO(_lock_file(folder), "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as cause:
            msg = f"the sandboxes in {root} belong to a process that runs"
            raise SandboxHeld(msg) from cause
        yield


def _lock_file(root: int) -> int:
    """Open the lock file. A program of a sandbox may have put anything in its place."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(os.stat(SANDBOX_LOCK, dir_fd=root, follow_symlinks=False).st_mode):
            remove(SANDBOX_LOCK, root, Deadline(LOCK_SECONDS))
    return os.open(SANDBOX_LOCK, flags, 0o600, dir_fd=root)
