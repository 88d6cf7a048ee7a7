"""Ensures that one process owns an embedded bus, by a lock that names its holder and that the kernel releases when the holder dies."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from evener.bus.port import BusHeld

BUS_LOCK: Final = "bus.lock"
INHERITED_SECONDS: Final = 10.0
"""How long to wait for a lock whose holder is dead: a program that it was just starting has its files until it runs."""
POLL_SECONDS: Final = 0.02


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Create the folder if it is missing, and hold its lock. Raises BusHeld with the pid of the process that holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / BUS_LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _lock(descriptor, folder)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    """Take the lock. Raises BusHeld at once if its holder lives."""
    until = time.monotonic() + INHERITED_SECONDS
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as cause:
            holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
            if Path(f"/proc/{holder}").exists() or time.monotonic() > until:
                msg = f"the bus in {folder} is held by process {holder}"
                raise BusHeld(msg) from cause
        time.sleep(POLL_SECONDS)
