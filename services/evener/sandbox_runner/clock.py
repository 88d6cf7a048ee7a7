"""The agent's clock counts the harness's own time and sampling. It stops while a call waits for something that is not the agent's doing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class AgentClock:
    """Counts the seconds since it was created, minus the union of all waits: two calls that wait at the same time count once."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._began = now()
        self._waited = 0.0
        self._covered = self._began
        """Waits up to here are counted."""
        self._waiting: set[CallWait] = set()
        self._wait_began = 0.0

    def seconds(self) -> float:
        """Return the agent's time so far."""
        end = self._wait_began if self._waiting else self._now()
        return max(0.0, end - self._began - self._waited)

    @contextmanager
    def call(self) -> Iterator["CallWait"]:
        """Track the waits of one call, which end with this block."""
        wait = CallWait(self)
        try:
            yield wait
        finally:
            wait.end()

    def begin(self, wait: "CallWait") -> None:
        """Stop the clock until every wait that began has ended."""
        if not self._waiting:
            self._wait_began = self._now()
        self._waiting.add(wait)

    def end(self, wait: "CallWait") -> None:
        """Resume the clock if this was the last wait."""
        if wait in self._waiting:
            self._waiting.remove(wait)
            if not self._waiting:
                self._cover(self._wait_began, self._now())

    def take_out(self, seconds: float) -> None:
        """Subtract a wait that has just ended."""
        if not self._waiting:
            now = self._now()
            self._cover(now - seconds, now)

    def _cover(self, begin: float, end: float) -> None:
        self._waited += max(0.0, end - max(begin, self._covered))
        self._covered = max(self._covered, end)


class CallWait:
    """Whether one call waits now. Beginning twice is the same as beginning once."""

    def __init__(self, clock: AgentClock) -> None:
        self._clock = clock

    def begin(self) -> None:
        """The call waits from now on."""
        self._clock.begin(self)

    def end(self) -> None:
        """The call is being sampled from now on, or has ended."""
        self._clock.end(self)

    def take_out(self, seconds: float) -> None:
        """The call has just waited for this long while it was being sampled."""
        self._clock.take_out(seconds)
