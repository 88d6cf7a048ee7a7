"""When what was sampled leaves, by a clock that the test turns."""

import asyncio
from typing import Any

import numpy as np
import pytest
from tests.support.loop import LoopTime
from tests.support.world import World, user

from evener.engines.answers import Sampled
from evener.engines.port import Chunk
from evener.provider_gateway.inflight import InflightCall
from evener.provider_gateway.streaming import AnswerStream
from evener.provider_gateway.timings import GATEWAY_TIMINGS

TOKEN = Chunk(ids=np.array([1], np.int32), logprobs=np.array([0.0], np.float32), versions=np.array([0], np.int32))
TOKEN_SECONDS = 0.001


class Reader:
    """A renderer to which each token is a letter, and for which reading an answer takes so long."""

    def __init__(self, time: LoopTime, seconds: float) -> None:
        self.time = time
        self.reads = 0
        self._seconds = seconds

    def certain(self, ids: Any) -> tuple[str, str]:
        self.time.now += self._seconds
        self.reads += 1
        return "", "a" * len(ids)


async def streamed(reader: Reader, *, seconds: float) -> str:
    """Sample for so long; return what has left."""
    feed, sampled = InflightCall("r1", "digest", 3600.0), Sampled()
    opened = World().open([user("a")])[1]
    stream = AnswerStream(sampled, reader, feed, opened, GATEWAY_TIMINGS)  # type: ignore[arg-type]  # as far as it is used
    stream.begin()
    end = reader.time.now + seconds
    while reader.time.now < end:
        sampled.add(TOKEN)
        stream.grown()
        reader.time.now += TOKEN_SECONDS
        await asyncio.sleep(0)
    stream.stop()
    return feed.streamed.text


async def test_tokens_of_ten_milliseconds_leave_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each write costs more than the tokens in it, and nobody sees the difference."""
    reader = Reader(LoopTime(monkeypatch), 0.0)
    text = await streamed(reader, seconds=1.0)
    assert 0.9 <= reader.reads * GATEWAY_TIMINGS.streaming <= 1.02
    assert len(text) > 0.98 * 1.0 / TOKEN_SECONDS


async def test_reading_an_answer_again_and_again_takes_a_twentieth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long answer is slow to read, and the gateway serves others beside it."""
    reader = Reader(LoopTime(monkeypatch), 0.03)
    await streamed(reader, seconds=10.0)
    assert 0.9 <= reader.reads * 0.03 / 10.0 * 20 <= 1.1
