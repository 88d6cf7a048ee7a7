"""Tasks that run together and end together: the first error of one ends the others, and is raised."""

import asyncio
from types import TracebackType
from typing import Self


class Tasks(asyncio.TaskGroup):
    """A TaskGroup that raises the first error itself, so that callers catch the errors that they know, and not groups of them.

    If its own task is cancelled while one of its tasks fails, it raises CancelledError. A TaskGroup of Python before 3.13 raises the error
    alone, so that whoever handles it goes on as if nobody had cancelled it. `_parent_cancel_requested` tells the cancellations of the group
    itself from those of others; the group takes back only those from before its exit.
    """

    _parent_cancel_requested: bool

    async def __aenter__(self) -> Self:
        self._owner = asyncio.current_task()
        self._cancelled_before = self._cancellations()
        return await super().__aenter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        asked_before = self._parent_cancel_requested
        try:
            await super().__aexit__(kind, error, traceback)
        except BaseExceptionGroup as failed:
            if self._owner is not None and self._parent_cancel_requested and not asked_before:
                self._owner.uncancel()
            if self._cancellations() > self._cancelled_before:
                raise asyncio.CancelledError from failed.exceptions[0]
            raise failed.exceptions[0] from None

    def _cancellations(self) -> int:
        return 0 if self._owner is None else self._owner.cancelling()
