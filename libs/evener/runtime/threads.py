"""Runs work whose size depends on input in threads of its own, so that neither the event loop nor other work waits for it."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """A few threads for one kind of work. Further work waits while all are busy."""

    def __init__(self, name: str, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)

    def begin(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> "asyncio.Future[T]":
        """Return the future of what `work` returns. Cancelling it lets the thread go on, and calls work off that has no thread yet."""
        return asyncio.wrap_future(self._pool.submit(work, *args, **kwargs))

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what `work` returns, or raise what it raises.

        A cancelled caller waits until work that has begun is done: a thread cannot be stopped, and its inputs must not change meanwhile.
        Work that has no thread yet is not begun.
        """
        job = self._pool.submit(work, *args, **kwargs)
        done = asyncio.wrap_future(job)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            if not job.cancel():
                await to_its_end(asyncio.wait([done]))
                if not done.cancelled():
                    done.exception()  # it was retrieved, or the loop complains
            raise

    async def aclose(self, *, call_off: bool = False) -> None:
        """Wait until all work is done. `call_off`: what has no thread yet is not begun."""
        await asyncio.shield(asyncio.to_thread(self._pool.shutdown, cancel_futures=call_off))


async def to_its_end(work: Awaitable[T]) -> T:
    """Return what `work` returns. A cancelled caller waits for the end of the work before the cancellation takes effect."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # it was retrieved, or the loop complains
        raise
