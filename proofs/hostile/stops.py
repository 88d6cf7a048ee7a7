"""Stops of the watched loop: read from the file that `watched.py` appends to, and what of each is Evener's own."""

from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

BAR_MS: Final = 50.0
"""No input may stop the loop of gateway and runner for longer."""


class Stop(Struct, frozen=True, kw_only=True):
    """The loop did not run for a while. All times but `at` in milliseconds."""

    at: float
    """Its end, in seconds of CLOCK_MONOTONIC, which all processes share."""
    ms: float
    starved_ms: float
    """The part of `ms` in which the loop's thread was ready to run while other processes had the cores."""
    loop_cpu_ms: float
    process_cpu_ms: float
    """Much more than the loop's own: another thread of the process held the interpreter."""
    where: str
    """What the loop's thread did in the middle of it, innermost function first."""

    @property
    def own_ms(self) -> float:
        """Return what is not the machine's: at least what the loop's thread computed, whatever the kernel says of its waits."""
        return max(self.loop_cpu_ms, self.ms - self.starved_ms)


def read_stops(path: Path, since: float, until: float) -> list[Stop]:
    """Return the stops that ended between two moments."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    stops = (msgspec.json.decode(line, type=Stop) for line in lines)
    return [stop for stop in stops if since <= stop.at <= until]


def longest(stops: list[Stop]) -> Stop | None:
    """Return the one that is longest by its own part. None: there was none."""
    return max(stops, key=lambda stop: stop.own_ms, default=None)
