"""Waits of tests for changes that have no event, for as long as a busy machine may take."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

SECONDS = 300.0
"""The longest wait of a test, on the busiest machine."""
LOOK_SECONDS = 0.02
"""The pause between two looks."""

AnswerT = TypeVar("AnswerT")


async def eventually(condition: Callable[[], object], *, seconds: float = SECONDS) -> None:
    """Wait until a flag, a count or a file of somebody else says so. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(LOOK_SECONDS)


async def until(asked: Callable[[], Awaitable[AnswerT]], holds: Callable[[AnswerT], object] = bool, *, seconds: float = SECONDS) -> AnswerT:
    """Ask the log or an endpoint until the answer is as wanted, and return it. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not holds(answer := await asked()):  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(LOOK_SECONDS)
    return answer


def block_until(condition: Callable[[], object], *, seconds: float = SECONDS) -> None:
    """Wait without an event loop until a flag or a file of another process says so. Raises TimeoutError."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(LOOK_SECONDS)
