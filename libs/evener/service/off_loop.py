"""Work that grows with what somebody sent runs in threads of its own: the event loop goes on, and no other work waits behind it."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """A few threads for one kind of work; what comes while all are busy waits."""

    def __init__(self, name: str, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what `work` returns, or raise what it raises.

        A cancelled caller waits all the same: a thread cannot be stopped, and what it looks at must not change meanwhile.
        """
        return await to_its_end(asyncio.wrap_future(self._pool.submit(lambda: work(*args, **kwargs))))


async def to_its_end(work: Awaitable[T]) -> T:
    """Return what `work` returns. A caller that is cancelled, once or more, waits for its end, and is cancelled then."""
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
