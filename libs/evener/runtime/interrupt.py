"""A block that other code can end with an error of its choosing, as `asyncio.timeout` ends one with TimeoutError."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self


class Interrupt:
    """Use as a context manager around what may be ended. Outside the block, and after its first error, `end` does nothing."""

    def __init__(self) -> None:
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._error: Exception | None = None

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        self._cancelling = 0 if self._task is None else self._task.cancelling()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        task, self._task = self._task, None
        if self._error is None or task is None:
            return
        # A task that was cancelled for another reason too is cancelled: `uncancel` counts.
        if task.uncancel() <= self._cancelling and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise self._error from error

    def end(self, error: Exception) -> None:
        """Raise `error` in the block, where its task waits now."""
        if self._task is not None and self._error is None:
            self._error = error
            self._task.cancel()


@asynccontextmanager
async def ended_by(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run `work` beside this block. The error that it raises ends the block; the end of the block cancels it."""
    with Interrupt() as block:
        working = asyncio.create_task(work)
        working.add_done_callback(lambda done: _end(block, done))
        try:
            yield
        finally:
            working.cancel()
            await asyncio.wait({working})


def _end(block: Interrupt, done: asyncio.Task[None]) -> None:
    if not done.cancelled() and isinstance(error := done.exception(), Exception):
        block.end(error)
