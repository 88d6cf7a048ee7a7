"""The low-water mark of a partition of `sessions`: from where its state can be read anew."""

from collections import deque
from typing import Final

from evener.tokens.session import START_LIMIT_SECONDS

CLOCKS_DIFFER_SECONDS: Final = 600.0
"""By so much the clocks of the machines that write and read a partition may differ."""


class LowWater:
    """The first record of the oldest open session, never past a seal younger than the start limit.

    A start that arrives within the limit after its session's seal is void; to know that, the seal must be read again. Seals carry
    their writer's time, which may have been another machine's.
    """

    def __init__(self) -> None:
        self._open: dict[str, int] = {}
        self._sealed: dict[str, float] = {}
        self._seals: deque[tuple[int, float, str]] = deque()

    def opened(self, session_id: str, offset: int) -> None:
        """Note a session's first record."""
        self._open.setdefault(session_id, offset)

    def sealed(self, session_id: str, offset: int, at: float) -> None:
        """Note a seal: `offset` is at or before it, `at` its time."""
        self._open.pop(session_id, None)
        self._sealed[session_id] = at
        self._seals.append((offset, at, session_id))

    def is_sealed(self, session_id: str) -> bool:
        """Return whether the session was sealed within the start limit."""
        return session_id in self._sealed

    def mark(self, next_offset: int, now: float, *, without: str | None = None) -> int:
        """Return where a reader that starts anew must begin. `without`: a session whose seal is being written."""
        while self._seals and self._seals[0][1] < now - START_LIMIT_SECONDS - CLOCKS_DIFFER_SECONDS:
            _, _, session_id = self._seals.popleft()
            self._sealed.pop(session_id, None)
        marks = [offset for session_id, offset in self._open.items() if session_id != without]
        if self._seals:
            marks.append(self._seals[0][0])
        return min([*marks, next_offset])
