"""Again, where trying again can help: an attempt is not lost because the log is away for a while."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import structlog

from evener.proto.errors import Recoverable

INSIST_SECONDS: Final = 600.0
"""How long something is tried again. Then the attempt ends, by its own report or by its lease."""
FIRST_PAUSE_SECONDS: Final = 0.2
LONGEST_PAUSE_SECONDS: Final = 5.0

T = TypeVar("T")
log = structlog.get_logger()


async def insist(send: Callable[[], Awaitable[T]]) -> T:
    """Try again what may pass, up to a limit."""
    deadline, pause = time.monotonic() + INSIST_SECONDS, FIRST_PAUSE_SECONDS
    while True:
        try:
            return await send()
        except Recoverable as error:
            if time.monotonic() > deadline:
                raise
            log.warning("tried_again", error=str(error))
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
