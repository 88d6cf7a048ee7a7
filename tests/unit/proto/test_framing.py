"""Frames come out of a stream as they went in, however it is cut into pieces."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evener.proto.framing import FrameReader, StreamCut, framed


class Pieces:
    """A stream that comes in pieces; after the last one it has ended."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces
        self.more = asyncio.Event()
        self.more.set()

    async def readany(self) -> bytes:
        await self.more.wait()
        return self._pieces.pop(0) if self._pieces else b""


async def frames(pieces: list[bytes]) -> list[bytes]:
    reader, found = FrameReader(Pieces(pieces)), []
    while (body := await reader.next()) is not None:
        found.append(body)
    return found


@given(st.lists(st.binary(max_size=300), max_size=8), st.integers(1, 400))
def test_frames_come_out_as_they_went_in(bodies: list[bytes], size: int) -> None:
    """Empty ones, too."""
    data = b"".join(map(framed, bodies))
    assert asyncio.run(frames([data[at : at + size] for at in range(0, len(data), size)])) == bodies


async def test_read_that_is_cancelled_loses_nothing() -> None:
    """Whoever waits for a frame has other things to do meanwhile."""
    stream = Pieces([framed(b"abc")[:5], framed(b"abc")[5:]])
    reader = FrameReader(stream)
    stream.more.clear()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.next(), 0.01)
    stream.more.set()

    assert await reader.next() == b"abc"
    assert await reader.next() is None


@pytest.mark.parametrize("data", [framed(b"abc")[:3], framed(b"abc")[:-1], b"\xff\xff\xff\xff"], ids=["head", "body", "too large"])
async def test_stream_that_ends_within_a_frame_was_cut(data: bytes) -> None:
    """An end between frames is an end; another is told."""
    with pytest.raises(StreamCut):
        await frames([data])
