"""How long an engine says nothing to one call. A long silence is not the agent's time."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from evener.proto.relay import Waiting

SILENCE_POLL_SECONDS: Final = 0.5
"""How often a call learns that a long silence lasts. Relays must hear of it more often than their `told_seconds`."""


class Silence:
    """Tells a call of each silence of its engine that is longer than `seconds`, from the last token on, again and again while it lasts.

    A stuck engine, or one with a queue of its own, would otherwise spend the agent's time. Used as a context while the call is sampled.
    """

    def __init__(self, tell: Callable[[Waiting], None], seconds: float, poll_seconds: float = SILENCE_POLL_SECONDS) -> None:
        self._tell = tell
        self._seconds = seconds
        self._poll_seconds = poll_seconds
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_long(self) -> bool:
        """Whether the engine has said nothing for longer than `seconds`."""
        return self._lasts() >= self._seconds

    def heard(self) -> None:
        """Note that a token arrived."""
        self._heard_at = self._loop.time()

    def __enter__(self) -> Self:
        self.heard()
        self._look()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _lasts(self) -> float:
        return self._loop.time() - self._heard_at

    def _look(self) -> None:
        if (lasts := self._lasts()) >= self._seconds:
            self._tell(Waiting(seconds=lasts))
        self._timer = self._loop.call_later(max(self._seconds - lasts, self._poll_seconds), self._look)
