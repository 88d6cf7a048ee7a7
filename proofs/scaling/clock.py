"""Simulated time: what happens next, happens now."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count


class Clock:
    """Runs functions in the order of their times, in seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def after(self, seconds: float, function: Callable[[], None]) -> None:
        """Run a function later."""
        heappush(self._queue, (self.now + seconds, next(self._numbers), function))

    def run_until(self, end: float) -> None:
        """Let the time pass."""
        while self._queue and self._queue[0][0] <= end:
            self.now, _, function = heappop(self._queue)
            function()
        self.now = end
