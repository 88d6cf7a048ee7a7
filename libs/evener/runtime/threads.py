"""Runs work whose size depends on input in threads of its own, so that neither the event loop nor other work waits for it."""

import asyncio
import contextlib
import queue
import threading
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
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


class LeftBehindThreads:
    """A few threads for work that may hang for ever. The end of the process does not wait for them."""

    def __init__(self, name: str, count: int) -> None:
        self._name = name
        self._count = count
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._idle = threading.Semaphore(0)

    def begin(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Return the future of what `work` returns. Called in one thread only."""
        job: Future[T] = Future()

        def run() -> None:
            if job.set_running_or_notify_cancel():
                try:
                    job.set_result(work(*args, **kwargs))
                except BaseException as raised:  # noqa: BLE001 - it is raised where the future is awaited
                    job.set_exception(raised)

        self._queue.put(run)
        if not self._idle.acquire(blocking=False) and len(self._threads) < self._count:
            thread = threading.Thread(target=_serve, args=(self._queue, self._idle), name=self._name, daemon=True)
            if not self._threads:
                weakref.finalize(self, _end, self._queue, self._threads)
            self._threads.append(thread)
            thread.start()
        return job


def _serve(jobs: "queue.SimpleQueue[Callable[[], None] | None]", idle: threading.Semaphore) -> None:
    while (run := jobs.get()) is not None:
        run()
        del run  # nothing is kept alive while the thread waits
        idle.release()


def _end(jobs: "queue.SimpleQueue[Callable[[], None] | None]", threads: list[threading.Thread]) -> None:
    for _ in threads:
        jobs.put(None)


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
