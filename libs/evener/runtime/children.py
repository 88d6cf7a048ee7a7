"""Runs work on foreign text in child processes, with a limit of time and of memory.

A regular expression and a parser hold the interpreter's lock until they return: in a thread they stop the event loop and all other threads,
for hours if somebody wrote the text for that. In a process of its own the work stops nobody, and can be killed.
"""

import atexit
import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

from evener.runtime import child
from evener.runtime.threads import Threads, check_wanted

CHILD_BYTES: Final = 4 << 30
"""The limit of a child's address space."""
WANTED_SECONDS: Final = 0.1
"""How often a caller in a thread looks whether anybody still waits for the work."""
PIPE_PIECE_BYTES: Final = 1 << 20


class WorkTooLong(Exception):
    """The work took longer than its limit, and was ended."""


class WorkFailed(Exception):
    """The work raised an error, which is in the notes, or its process ended, by its limit of memory for example."""


class Children:
    """A few processes for one kind of work. One that has nothing to do is kept for the next job."""

    def __init__(self, name: str, count: int) -> None:
        self._threads = Threads(name, count)
        self._idle: list[_Child] = []
        atexit.register(self.end_idle)

    async def run(self, work: Callable[..., bytes], *given: bytes, seconds: float) -> bytes:
        """Return what `work` returns for `given`, in a child process that finds it by its name. Further work waits while all are busy.

        `seconds` are counted from its begin. A cancelled caller leaves when the process is dead. Raises WorkTooLong, WorkFailed.
        """
        return await self._threads.run(self._run, work, given, seconds)

    def end_idle(self) -> None:
        """End the processes that have nothing to do."""
        while self._idle:
            self._idle.pop().end()

    def _run(self, work: Callable[..., bytes], given: Sequence[bytes], seconds: float) -> bytes:
        deadline = time.monotonic() + seconds
        doing = self._idle_one() or _Child()
        try:
            state, answer = doing.answer_to([f"{work.__module__}:{work.__qualname__}".encode(), str(seconds).encode(), *given], deadline)
        except BaseException:
            doing.end()
            raise
        if state == child.JOB_DONE:
            self._idle.append(doing)
            return answer
        doing.end()
        if state == child.JOB_DONE_LAST:
            return answer
        text = answer.decode().strip()
        failed = WorkFailed(text.rpartition("\n")[2])
        failed.add_note(text)
        raise failed

    def _idle_one(self) -> "_Child | None":
        with contextlib.suppress(IndexError):
            while (idle := self._idle.pop()).has_ended:
                idle.end()
            return idle
        return None


class _Child:
    """A process, and our ends of its pipes."""

    def __init__(self) -> None:
        its_jobs, self._jobs = os.pipe()
        self._answers, its_answers = os.pipe()
        argv = [sys.executable, "-P", "-W", "ignore", "-m", child.__name__, str(CHILD_BYTES)]
        few = {"OPENBLAS_NUM_THREADS": "1"}  # each of its threads takes address space
        try:
            self._process = subprocess.Popen(argv, stdin=its_jobs, stdout=its_answers, start_new_session=True, env={**os.environ, **few})
        except BaseException:
            os.close(self._jobs)
            os.close(self._answers)
            raise
        finally:
            os.close(its_jobs)
            os.close(its_answers)
        for pipe in (self._jobs, self._answers):
            os.set_blocking(pipe, False)
        self._deadline = 0.0

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def answer_to(self, job: Sequence[bytes], deadline: float) -> list[bytes]:
        """Return how a job ended, and its answer. Raises WorkTooLong, WorkFailed, Unwanted."""
        self._deadline = deadline
        try:
            for piece in child.framed(job):
                self._write(memoryview(piece))
            return child.read(self)
        except (BrokenPipeError, EOFError) as ended:
            msg = f"its process ended with {self._process.wait()}"
            raise WorkFailed(msg) from ended

    def end(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait()
        os.close(self._jobs)
        os.close(self._answers)

    def read(self, size: int) -> bytes:
        """Return so many bytes of its answer."""
        read = bytearray()
        while len(read) < size:
            self._wait(self._answers, select.POLLIN)
            some = os.read(self._answers, min(size - len(read), PIPE_PIECE_BYTES))
            if not some:
                raise EOFError
            read += some
        return bytes(read)

    def _write(self, left: memoryview) -> None:
        while left:
            self._wait(self._jobs, select.POLLOUT)
            left = left[os.write(self._jobs, left[:PIPE_PIECE_BYTES]) :]

    def _wait(self, pipe: int, event: int) -> None:
        """Wait until a pipe is ready, as long as there is time and somebody waits for the work."""
        poll = select.poll()
        poll.register(pipe, event)
        while not poll.poll(WANTED_SECONDS * 1000):
            check_wanted()
            if time.monotonic() > self._deadline:
                raise WorkTooLong
