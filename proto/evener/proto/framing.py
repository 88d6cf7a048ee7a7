"""Frames: how messages follow each other in a stream. Each has its length before it, in 4 bytes, big-endian; it may be 0."""

from typing import Final, Protocol

from evener.proto.errors import Recoverable

HEAD_BYTES: Final = 4
MSGPACK: Final = "application/x-msgpack"
"""The content type of events in msgpack, one alone or many in frames."""
MAX_FRAME_BYTES: Final = 256 * 1024 * 1024


class StreamCut(Recoverable):
    """The connection broke within a message. Ask again; if it stays so, look for a proxy or a time-out between the two."""


class ByteStream(Protocol):
    """What frames are read from: the body of an aiohttp answer."""

    async def readany(self) -> bytes:
        """Return what has come, at least a byte. Empty: the stream ended."""
        ...


def framed(body: bytes) -> bytes:
    """Return a message with its length before it."""
    return len(body).to_bytes(HEAD_BYTES, "big") + body


class FrameReader:
    """Cuts frames out of a stream. A read that is cancelled loses nothing."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._came = bytearray()

    async def next(self) -> bytes | None:
        """Return the next message. None: the stream ended between frames. Raises StreamCut, also for what cannot be a frame."""
        while (body := self._cut()) is None:
            part = await self._stream.readany()
            if not part and self._came:
                msg = "the stream was cut within a frame"
                raise StreamCut(msg)
            if not part:
                return None
            self._came += part
        return body

    def _cut(self) -> bytes | None:
        if len(self._came) < HEAD_BYTES:
            return None
        end = HEAD_BYTES + int.from_bytes(self._came[:HEAD_BYTES], "big")
        if end > MAX_FRAME_BYTES:
            msg = f"a frame of {end} bytes"
            raise StreamCut(msg)
        if len(self._came) < end:
            return None
        body = bytes(self._came[HEAD_BYTES:end])
        del self._came[:end]
        return body
