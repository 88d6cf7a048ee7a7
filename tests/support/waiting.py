"""Waits of tests: for what has no event of its own, as long as a busy machine may take."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

SECONDS = 60.0
"""What a test waits for anything."""
LOOK_SECONDS = 0.01
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
