"""Threads for the files of sandboxes, apart from the loop's own pool: what an agent left cannot hold up what else needs a thread."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Final, ParamSpec, TypeVar

THREADS: Final = 8
"""Pieces of file work of one backend at a time; further ones wait."""

P = ParamSpec("P")
T = TypeVar("T")


class FileWork:
    """A bounded pool. Opened by `file_work`."""

    def __init__(self, files: ThreadPoolExecutor, removals: ThreadPoolExecutor) -> None:
        self._files = files
        self._removals = removals
        self.called_off = threading.Event()
        """Set when the backend closes: what can be done later ends."""

    async def run(self, work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Do a piece of work in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._files, lambda: work(*args, **named))

    def remove(self, work: Callable[[], None]) -> asyncio.Future[None]:
        """Do a removal, after those that were asked for before."""
        return asyncio.get_running_loop().run_in_executor(self._removals, work)


@asynccontextmanager
async def file_work() -> AsyncIterator[FileWork]:
    """Open the threads; at the end what can be called off is, and what still runs is waited for."""
    files, removals = ThreadPoolExecutor(THREADS, "sandbox-files"), ThreadPoolExecutor(1, "sandbox-removal")
    work = FileWork(files, removals)
    try:
        yield work
    finally:
        work.called_off.set()
        for pool in (removals, files):
            await asyncio.shield(asyncio.to_thread(pool.shutdown, cancel_futures=pool is removals))
