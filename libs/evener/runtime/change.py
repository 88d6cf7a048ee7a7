"""Waiting for something that changes, without missing a change."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Change:
    """Wakes those who wait for what may have changed."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def note(self) -> None:
        """Let everybody who waits look again."""
        changed, self._next = self._next, asyncio.Event()
        changed.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return when `holds` is true. It is called at once, and after each change."""
        while not holds():
            await self._next.wait()


async def first_of(*waits: Coroutine[Any, Any, None]) -> None:
    """Return when the first of several waits has ended; the others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
