"""The one way to wait for a dependency that is unavailable."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import structlog

from evener.proto.errors import Recoverable
from evener.runtime.backoff import Backoff

LOG_SECONDS: Final = 30.0
"""How often an ongoing outage is logged."""

T = TypeVar("T")

log = structlog.get_logger()


PAUSES: Final = Backoff(0.2, 5.0)


class Dependency:
    """Something outside this process that may be unavailable for a while. One object stands for each, and knows for how long."""

    def __init__(self, name: str, pauses: Backoff = PAUSES) -> None:
        """`name` is the name in the log: `NAME_away`, `NAME_back`."""
        self._away, self._back = f"{name}_away", f"{name}_back"
        self._pauses = pauses
        self._away_since = 0.0
        self._failed_at = -math.inf
        """The time of the last failure that no success followed."""
        self._logged_at = -math.inf

    async def ask(self, ask: Callable[[], Awaitable[T]], seconds: float = math.inf) -> T:
        """Return what `ask` returns, repeating it while it raises Recoverable. Cancellation ends the wait.

        Raises the error once the dependency has been unavailable for `seconds`, and then at once for later callers.
        """
        for pause in self._pauses:
            asked_at = time.monotonic()
            try:
                answer = await ask()
            except Recoverable as away:
                if self._note(away, asked_at) >= seconds:
                    raise
            else:
                self._came_back()
                return answer
            await asyncio.sleep(pause)
        raise AssertionError

    def _note(self, error: Recoverable, asked_at: float) -> float:
        """Note that what was asked at this time failed; return for how long the dependency has been away.

        An outage goes on as long as it is asked for again soon after each failure, however long the answers take.
        """
        now = time.monotonic()
        if asked_at - self._failed_at > 2 * self._pauses.longest_seconds:
            self._away_since = asked_at
        self._failed_at = now
        if now - self._logged_at >= LOG_SECONDS:
            self._logged_at = now
            log.warning(self._away, error=str(error), seconds=round(now - self._away_since, 1))
        return now - self._away_since

    def _came_back(self) -> None:
        if self._failed_at > -math.inf:
            log.info(self._back, seconds=round(time.monotonic() - self._away_since, 1))
            self._failed_at = self._logged_at = -math.inf
