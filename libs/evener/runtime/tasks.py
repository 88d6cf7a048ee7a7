"""Tasks that run together and end together: the first error of one ends the others, and is raised."""

import asyncio
from types import TracebackType


class Tasks(asyncio.TaskGroup):
    """A TaskGroup that raises the first error itself, so that callers catch the errors that they know, and not groups of them."""

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        try:
            await super().__aexit__(kind, error, traceback)
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
