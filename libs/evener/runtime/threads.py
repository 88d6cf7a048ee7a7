"""Runs work whose size depends on input in threads of its own, so that neither the event loop nor other work waits for it."""

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


_unwanted: Final[ContextVar[threading.Event | None]] = ContextVar("unwanted", default=None)
"""Set once nobody waits any more for the work of this thread."""


class Unwanted(Exception):
    """Nobody waits for this work any more."""


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
        Long work asks with `check_wanted` whether to go on. Work that has no thread yet is not begun.
        """
        unwanted = threading.Event()
        job = self._pool.submit(_while_wanted, unwanted, partial(work, *args, **kwargs))
        done = asyncio.wrap_future(job)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            unwanted.set()
            done.add_done_callback(_retrieve)  # a further cancellation leaves before it is done
            if not job.cancel():
                await to_its_end(asyncio.wait([done]))
            raise

    async def aclose(self, *, call_off: bool = False) -> None:
        """Wait until all work is done. `call_off`: work that has no thread yet is not begun."""
        await asyncio.shield(asyncio.to_thread(self._pool.shutdown, cancel_futures=call_off))


class LeftBehindThreads:
    """A few threads for work that may hang for ever. The end of the process does not wait for them."""

    def __init__(self, name: str, count: int) -> None:
        self._name = name
        self._count = count
        self._threads = 0
        self._line = _Line()

    def begin(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Return the future of what `work` returns. Cancelling it before it has a thread drops the work. Called in one thread only."""
        job: Future[T] = Future()
        line = self._line
        with line.changed:
            line.jobs[job] = partial(work, *args, **kwargs)
            line.changed.notify()
            is_short = len(line.jobs) > line.idle and self._threads < self._count
        job.add_done_callback(line.drop)
        if is_short:
            if not self._threads:
                weakref.finalize(self, line.end)
            self._threads += 1
            threading.Thread(target=line.serve, name=self._name, daemon=True).start()
        return job


class _Line:
    """The work that has no thread yet, in its order, for threads that outlive whoever gave it."""

    def __init__(self) -> None:
        self.jobs: dict[Future[Any], Callable[[], Any]] = {}
        self.idle = 0
        """The number of threads that wait for work."""
        self.changed = threading.Condition()
        self._ended = False

    def drop(self, job: "Future[Any]") -> None:
        """Forget the work of a job that was cancelled: what it holds may be large, and the threads may hang for ever."""
        with self.changed:
            self.jobs.pop(job, None)

    def end(self) -> None:
        """Let the threads end when no work is left."""
        with self.changed:
            self._ended = True
            self.changed.notify_all()

    def serve(self) -> None:
        """Do the jobs as they come, one after the other."""
        while (taken := self._take()) is not None:
            job, work = taken
            if job.set_running_or_notify_cancel():
                try:
                    job.set_result(work())
                except BaseException as raised:  # noqa: BLE001 - it is raised where the future is awaited
                    job.set_exception(raised)
            del taken, job, work  # nothing is kept alive while the thread waits

    def _take(self) -> "tuple[Future[Any], Callable[[], Any]] | None":
        with self.changed:
            self.idle += 1
            self.changed.wait_for(lambda: self.jobs or self._ended)
            self.idle -= 1
            job = next(iter(self.jobs), None)
            return None if job is None else (job, self.jobs.pop(job))


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


def check_wanted() -> None:
    """Raise Unwanted if this is work in `Threads` whose caller was cancelled. Long work calls it between its steps."""
    unwanted = _unwanted.get()
    if unwanted is not None and unwanted.is_set():
        raise Unwanted


def _while_wanted(unwanted: threading.Event, work: Callable[[], T]) -> T:
    before = _unwanted.set(unwanted)
    try:
        return work()
    finally:
        _unwanted.reset(before)


def _retrieve(done: "asyncio.Future[Any]") -> None:
    """Take the error of work that nobody waits for, or the loop complains."""
    if not done.cancelled():
        done.exception()
