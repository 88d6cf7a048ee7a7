"""The agent's clock counts the harness's own time and sampling. It stops while a call waits for something that is not the agent's doing."""

from collections.abc import Callable


class AgentClock:
    """Counts the seconds since it was created, minus the union of all waits: two calls that wait at the same time count once."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._began = now()
        self._waited = 0.0
        self._covered = self._began
        """Waits up to here are counted."""
        self._waiting: set[object] = set()
        self._wait_began = 0.0

    def seconds(self) -> float:
        """Return the agent's time so far."""
        end = self._wait_began if self._waiting else self._now()
        return max(0.0, end - self._began - self._waited)

    def begin(self, call: object) -> None:
        """Stop the clock for a call that waits from now on. Beginning twice is the same as beginning once."""
        if not self._waiting:
            self._wait_began = self._now()
        self._waiting.add(call)

    def end(self, call: object) -> None:
        """Resume the clock if this call was the last one that waited. It is being sampled from now on, or has ended."""
        if call in self._waiting:
            self._waiting.remove(call)
            if not self._waiting:
                self._cover(self._wait_began, self._now())

    def take_out(self, seconds: float) -> None:
        """Subtract a wait that has just ended, of a call that was being sampled."""
        if not self._waiting:
            now = self._now()
            self._cover(now - seconds, now)

    def _cover(self, begin: float, end: float) -> None:
        self._waited += max(0.0, end - max(begin, self._covered))
        self._covered = max(self._covered, end)
