"""Pauses between tries. A trainer imports this module: it needs nothing but msgspec."""

from collections.abc import Iterator
from itertools import count
from typing import Final

from msgspec import Struct

MAX_DOUBLINGS: Final = 60
"""The limit of doublings of a pause: something that is unavailable for a day is tried thousands of times."""


class Backoff(Struct, frozen=True):
    """Pauses between tries: each is twice as long as the one before, up to the longest. Iterating yields them for ever."""

    first_seconds: float
    longest_seconds: float

    def seconds(self, failures: int) -> float:
        """Return the pause after this many failures in a row, from 1."""
        return min(self.first_seconds * 2.0 ** min(failures - 1, MAX_DOUBLINGS), self.longest_seconds)

    def __iter__(self) -> Iterator[float]:
        return map(self.seconds, count(1))
