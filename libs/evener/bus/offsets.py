"""Determines which offset a reader may commit when its records finish in any order."""


class Contiguous:
    """The records of one partition that were handed out, and which of them are finished.

    A record counts only when all records before it are finished. A restarted reader therefore repeats some records but skips none.
    """

    def __init__(self, start: int) -> None:
        """Begin at `start`, the offset of the next record to read."""
        self.next_offset = start
        """The offset to commit: all records before it are finished."""
        self._open: dict[int, bool] = {}

    def oldest_open(self) -> int | None:
        """Return the lowest offset that is being worked on. None: there is none."""
        return next(iter(self._open), None)

    def handed_out(self, offset: int) -> None:
        """Register a record that is being worked on. Raises ValueError unless offsets rise."""
        last = next(reversed(self._open), self.next_offset - 1)
        if offset <= last:
            msg = f"offset {offset} was handed out after {last}"
            raise ValueError(msg)
        self._open[offset] = False

    def finished(self, offset: int) -> int:
        """Mark a record as finished and return the offset to commit now. Raises KeyError for one that is not open."""
        if self._open[offset]:
            raise KeyError(offset)
        self._open[offset] = True
        while self._open:
            first, done = next(iter(self._open.items()))
            if not done:
                break
            del self._open[first]
            self.next_offset = first + 1
        return self.next_offset
