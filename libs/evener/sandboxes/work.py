"""Threads for the files of sandboxes, separate from the loop's own pool: slow work on an agent's files delays no other threads."""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from msgspec import Struct

from evener.runtime.threads import Threads

THREADS: Final = 8
"""The pieces of file work that one backend does at a time. Further pieces wait."""


class FileWork(Struct, frozen=True, eq=False):
    """The threads of one backend, opened by `file_work`."""

    files: Threads
    removals: Threads
    """One thread: folders are removed in the order in which they were given."""
    called_off: threading.Event
    """Set when the backend closes: what can be done later ends."""


@asynccontextmanager
async def file_work() -> AsyncIterator[FileWork]:
    """Open the threads. At the end, what can be called off is called off, and what still runs is waited for."""
    work = FileWork(Threads("sandbox-files", THREADS), Threads("sandbox-removal", 1), threading.Event())
    try:
        yield work
    finally:
        work.called_off.set()
        await work.removals.aclose(call_off=True)
        await work.files.aclose()
