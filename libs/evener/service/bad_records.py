"""The limit of bad records: single ones become dead letters, but not a whole input."""

from collections import deque
from typing import Final

from evener.bus.port import Record
from evener.proto.errors import EvenerError

LAST_RECORDS: Final = 200
"""The records of a partition that count."""
MAX_SHARE: Final = 0.25
"""The share of them that may be bad. Before so many were read, the share is of `LAST_RECORDS` all the same: 50 bad ones are too many."""


class TooManyBadRecords(EvenerError):
    """The whole input is bad, not single records. Look at the dead letters: another program or version writes to this topic."""


class BadRecords:
    """Which of the last records of each partition were bad, as one reader found them."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], deque[bool]] = {}
        """Whether each of the last records was bad, by topic and partition. Absent: none was."""

    def good(self, record: Record) -> None:
        """Count a record that could be read."""
        if self._last and (last := self._last.get((record.topic, record.partition))) is not None:
            last.append(False)
            if not any(last):
                del self._last[record.topic, record.partition]

    def bad(self, record: Record) -> None:
        """Count a bad record. Raises TooManyBadRecords."""
        last = self._last.setdefault((record.topic, record.partition), deque(maxlen=LAST_RECORDS))
        last.append(True)
        if sum(last) >= LAST_RECORDS * MAX_SHARE:
            msg = f"{sum(last)} of the last {len(last)} records of partition {record.partition} of {record.topic} are bad"
            raise TooManyBadRecords(msg)
