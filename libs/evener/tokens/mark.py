"""The low-water mark of a partition of `sessions`: the offset from which its state can be rebuilt."""

from collections import deque
from typing import Final

from evener.tokens.session import START_LIMIT_SECONDS

CLOCKS_DIFFER_SECONDS: Final = 600.0
"""The largest difference between the clocks of the machines that write and read a partition."""


class LowWater:
    """The first record of the oldest open session, but never later than a seal that is younger than the start limit.

    A start that arrives within the limit after its session's seal is void, and a reader must read the seal to know that. A seal carries the
    time of its writer, which may run on another machine.
    """

    def __init__(self) -> None:
        self._open: dict[str, int] = {}
        self._sealed: dict[str, float] = {}
        self._seals: deque[tuple[int, float, str]] = deque()

    def opened(self, session_id: str, offset: int) -> None:
        """Note a session's first record."""
        self._open.setdefault(session_id, offset)

    def sealed(self, session_id: str, offset: int, at: float) -> None:
        """Note a seal. `offset` is at or before the seal, and `at` is its time."""
        self._open.pop(session_id, None)
        self._sealed[session_id] = at
        self._seals.append((offset, at, session_id))

    def is_sealed(self, session_id: str) -> bool:
        """Return whether the session was sealed within the start limit."""
        return session_id in self._sealed

    def mark(self, next_offset: int, now: float, *, without: str | None = None) -> int:
        """Return the offset at which a new reader must begin. `without` names a session whose seal is being written."""
        while self._seals and self._seals[0][1] < now - START_LIMIT_SECONDS - CLOCKS_DIFFER_SECONDS:
            _, _, session_id = self._seals.popleft()
            self._sealed.pop(session_id, None)
        marks = [offset for session_id, offset in self._open.items() if session_id != without]
        if self._seals:
            marks.append(self._seals[0][0])
        return min([*marks, next_offset])
