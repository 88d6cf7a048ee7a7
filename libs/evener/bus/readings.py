"""What followers of a bus with a name are reading, from which their lag is measured.

Committed offsets do not tell it: they are low-water marks, to which a reader returns after a restart.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

from evener.bus.port import Reader

Where = Callable[[], Awaitable[int]]
NO_READER: Final = Reader("")
READ_RECORDS: Final = 100
"""The largest number of records that a follower gets at once. It decodes them all before others have a turn."""


class Reading:
    """One follower of one partition."""

    def __init__(self, reader: Reader, topic: str, partition: int, start: int) -> None:
        self.reader = reader
        self.topic = topic
        self.partition = partition
        self._next_offset = start
        self._waiting_at: Where | None = None

    async def position(self) -> int:
        """Return the offset before which everything was worked on."""
        waiting_at = self._waiting_at
        at = self._next_offset if waiting_at is None else await waiting_at()
        held = self.reader.held()
        return at if held is None else min(held, at)

    @contextmanager
    def waiting(self, where: Where) -> Iterator[None]:
        """Wait for records in this block. `where`: the offset of the next one, past what holds none."""
        self._waiting_at = where
        try:
            yield
        finally:
            self._waiting_at = None

    def handed_out(self, first_offset: int) -> None:
        """Note that a batch is worked on, until the next one is waited for."""
        self._next_offset = first_offset


class Readings:
    """All followers of a bus that have a name."""

    def __init__(self) -> None:
        self._open: set[Reading] = set()

    def __iter__(self) -> Iterator[Reading]:
        return iter(tuple(self._open))

    @contextmanager
    def open(self, reader: Reader | None, topic: str, partition: int, start: int) -> Iterator[Reading]:
        """Count a follower in this block, if it has a name."""
        reading = Reading(reader or NO_READER, topic, partition, start)
        if reader is not None:
            self._open.add(reading)
        try:
            yield reading
        finally:
            self._open.discard(reading)
