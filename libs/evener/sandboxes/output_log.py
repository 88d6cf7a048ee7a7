"""Keeps the beginning and the end of a program's output."""


class BoundedLog:
    """The beginning and the end of a stream, each up to half of a limit."""

    def __init__(self, limit_bytes: int) -> None:
        self._half = limit_bytes // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def add(self, data: bytes) -> None:
        """Take more of the stream."""
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        over = len(self._tail) - self._half
        if over > 0:
            del self._tail[:over]
            self._dropped += over

    def read(self) -> bytes:
        """Return what was kept, with a line that says how much was dropped."""
        gap = f"\n[... {self._dropped} bytes dropped ...]\n".encode() if self._dropped else b""
        return bytes(self._head) + gap + bytes(self._tail)
