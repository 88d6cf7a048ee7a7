"""The only thread that writes to the embedded bus's file. Jobs that arrive during a sync share the next SQL transaction and sync."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct

from evener.bus.port import NotCommitted

MAX_JOBS: Final = 512
"""The limit of jobs in one SQL transaction. The callers bound the queue: each waits for its job."""

T = TypeVar("T")
Ends = dict[int, int]
"""The number of a log to the offset after its last record."""


class Transaction(Struct, frozen=True):
    """The resources of a job."""

    connection: sqlite3.Connection
    ends: Ends
    """The ends of the logs. A job advances them; they are restored if it fails."""


class _Job(Struct, Generic[T], eq=False):
    work: Callable[[Transaction], T]
    future: "asyncio.Future[T]"
    result: T | None = None
    error: Exception | None = None
    """Why the job failed. It is set in the thread, and the future afterwards in the event loop."""


class Writer:
    """Runs jobs in the order in which they arrive, each atomically, many per sync."""

    def __init__(self, connection: sqlite3.Connection, ends: Ends, grown: Callable[[Ends], None]) -> None:
        """Start the thread. `grown` is called in the event loop after each sync, with the new ends."""
        self._connection = connection
        self._ends = ends
        self._grown = grown
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[_Job[Any] | None] = SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="bus-writer", daemon=True)
        self._thread.start()

    async def do(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` in the thread; it is durable when this returns. Raises NotCommitted, and what `work` raises."""
        if self._closed:
            msg = "the bus is closed"
            raise NotCommitted(msg)
        job: _Job[T] = _Job(work, self._loop.create_future())
        self._jobs.put(job)
        return await job.future

    async def aclose(self) -> None:
        """Finish the work in progress and end the thread."""
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        while jobs := self._waiting():
            self._write(jobs)
            self._loop.call_soon_threadsafe(self._settle, jobs, self._ends)

    def _waiting(self) -> list[_Job[Any]]:
        """Return the jobs that wait, at least one, or none at the end."""
        jobs: list[_Job[Any]] = []
        job = self._jobs.get()
        while job is not None:
            jobs.append(job)
            if len(jobs) == MAX_JOBS:
                return jobs
            try:
                job = self._jobs.get_nowait()
            except Empty:
                return jobs
        if jobs:
            self._jobs.put(None)  # seen again, alone, at the next call
        return jobs

    def _write(self, jobs: list[_Job[Any]]) -> None:
        ends = dict(self._ends)
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            for job in jobs:
                if not job.future.cancelled():
                    self._apply(job, ends)
            self._connection.execute("COMMIT")
        except sqlite3.Error as cause:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            error = not_committed(cause)
            for job in jobs:
                job.error = error
        else:
            self._ends = ends

    def _apply(self, job: _Job[Any], ends: Ends) -> None:
        before = dict(ends)
        self._connection.execute("SAVEPOINT job")
        try:
            job.result = job.work(Transaction(self._connection, ends))
        except Exception as error:  # whatever it is, it belongs to the caller that waits for this job
            if not self._connection.in_transaction:
                raise  # SQLite gave up the whole transaction
            self._connection.execute("ROLLBACK TO job")
            ends.update(before)
            job.error = not_committed(error) if isinstance(error, sqlite3.Error) else error
        self._connection.execute("RELEASE job")

    def _settle(self, jobs: list[_Job[Any]], ends: Ends) -> None:
        self._grown(ends)
        for job in jobs:
            if job.future.done():
                continue
            if job.error is None:
                job.future.set_result(job.result)
            else:
                job.future.set_exception(job.error)


def not_committed(cause: sqlite3.Error | OSError) -> NotCommitted:
    """Return the error that says why the file could not be written."""
    error = NotCommitted(f"the bus file was not written: {cause}")
    error.__cause__ = cause
    return error
