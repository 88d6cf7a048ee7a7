"""Measures how long the event loop of a process is blocked. During that time no call, stream, commit or heartbeat makes progress."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from evener.service.telemetry import Metrics

COUNTED_SECONDS: Final = 0.01
"""Shorter delays of a tick are the noise of timers."""


class LoopWatch:
    """Ticks on the running loop and records how late each tick comes. It misses up to one tick of a stop."""

    def __init__(self, metrics: Metrics, tick_seconds: float) -> None:
        self._tick_seconds = tick_seconds
        self._stops = metrics.loop_stop_seconds
        self._cpu = metrics.loop_longest_stop_cpu_seconds
        self._loop = asyncio.get_running_loop()
        self._longest = self._longest_cpu = 0.0
        self._ticked_at, self._ticked_cpu = time.perf_counter(), time.process_time()
        self._timer = self._loop.call_later(tick_seconds, self._tick)
        metrics.loop_longest_stop_seconds.set_function(self.take)

    def take(self) -> float:
        """Return the longest stop since the last call, in seconds, and start again. Each scrape calls this."""
        self._note()
        self._cpu.set(self._longest_cpu)  # a scrape reads it next
        longest = self._longest
        self._longest = self._longest_cpu = 0.0
        return longest

    def close(self) -> None:
        """Stop ticking."""
        self._timer.cancel()

    def _tick(self) -> None:
        self._note()
        self._timer = self._loop.call_later(self._tick_seconds, self._tick)

    def _note(self) -> None:
        now, cpu = time.perf_counter(), time.process_time()
        late = now - self._ticked_at - self._tick_seconds
        if late > COUNTED_SECONDS:
            self._stops.observe(late)
        if late > self._longest:
            self._longest, self._longest_cpu = late, cpu - self._ticked_cpu
        self._ticked_at, self._ticked_cpu = now, cpu


@contextmanager
def watch_loop(metrics: Metrics, tick_seconds: float) -> Iterator[LoopWatch]:
    """Watch the running loop inside this block."""
    watch = LoopWatch(metrics, tick_seconds)
    try:
        yield watch
    finally:
        watch.close()
