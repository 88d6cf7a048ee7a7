"""A log that is away, or taken over, while an answer that it holds is on its way to a transport retry."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.gateway import POLICY, Hand, gateway

from evener.engines.scripted import Rule, Script, Wait
from evener.proto.ids import new_request_id
from evener.proto.reasons import CallFailure
from evener.proto.relay import Answer, Delta
from evener.proto.sessions import CallDelivered
from evener.proto.spec import Quirks, Streaming
from evener.proto.topics import Topic
from evener.provider_gateway.config import Config
from evener.runtime.faults import at_point_in_thread

SCRIPT = Script(rules=(Rule(match="slowly", say="one two three four", wait=(Wait(before=3),)),), default=Rule(say="Hello."))
QUIRKS = Quirks(retry_header="x-stainless-retry-count")
MARKED = {"x-stainless-retry-count": "1"}
HELLO = [{"role": "user", "content": "hi"}]
SLOWLY = [{"role": "user", "content": "slowly"}]


@contextmanager
def away(*, after: int = 0) -> Iterator[None]:
    """Take the log away from the gateway, after so many commits."""
    left = after

    def refuse() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            msg = "database or disk is full"
            raise sqlite3.OperationalError(msg)

    with at_point_in_thread("bus.committing.gateway", refuse):
        yield


async def deliveries(hand: Hand) -> list[str]:
    return [event.request_id for event in await hand.log("s1") if isinstance(event, CallDelivered)]


@pytest.mark.parametrize("streaming", list(Streaming))
async def test_retry_of_an_answered_call_is_sent_again_until_the_log_is_back(tmp_path: Path, streaming: Streaming) -> None:
    """Only its relay gets an error, in a whole response; then it gets the recorded answer, and nothing is sampled again."""
    async with gateway(tmp_path, SCRIPT) as hand:
        capability, retry = await hand.start("s1", quirks=QUIRKS, streaming=streaming), new_request_id()
        await hand.ask(capability, HELLO, stream=True)
        with away():
            lost = await hand.ask(capability, HELLO, retry, passed_on=MARKED, stream=True)
        assert (lost.status, lost.body, lost.failure) == (503, b"", None)

        again = await hand.ask(capability, HELLO, retry, passed_on=MARKED, stream=True)
        assert (again.status, again.recorded) == (200, True)
        assert await deliveries(hand) == [retry]
        assert len(hand.engine.ledger) == 1


async def test_harness_of_a_retry_is_told_when_the_log_stays_away(tmp_path: Path) -> None:
    """After the time that it may be kept waiting."""
    async with gateway(tmp_path, SCRIPT, config=Config(policies=(POLICY,), transparent_retry_seconds=1e-6)) as hand:
        capability, retry = await hand.start("s1", quirks=QUIRKS), new_request_id()
        await hand.ask(capability, HELLO)
        with away():
            answers = [await hand.ask(capability, HELLO, retry, passed_on=MARKED) for _ in range(2)]
        assert [answer.failure for answer in answers] == [None, CallFailure.NOT_COMMITTED]
        assert b"the log cannot be written" in answers[1].body


@pytest.mark.parametrize("streaming", list(Streaming))
async def test_retry_that_joined_its_twin_is_told_of_the_log_alone(tmp_path: Path, streaming: Streaming) -> None:
    """The twin has its answer. In `live` the retry's harness has seen a part, so it is told; in `buffered` only its relay is."""
    async with gateway(tmp_path, SCRIPT) as hand:
        capability, live = await hand.start("s1", quirks=QUIRKS, streaming=streaming), streaming is Streaming.LIVE
        with away(after=2 if live else 1):
            first = await hand.admitted(capability, SLOWLY, stream=True)
            await hand.engine.waiting()
            second = hand.frames(capability, {"model": "m", "messages": SLOWLY, "stream": True}, passed_on=MARKED)
            frames = [await anext(second)]
            hand.engine.go(times=None)
            frames += [frame async for frame in second]
            assert (await first).status == 200
        last = frames[-1]
        assert isinstance(last, Answer)
        assert (last.status, last.failure) == (503, CallFailure.NOT_COMMITTED if live else None)
        assert (b"the log cannot be written" in last.body) is live
        assert any(isinstance(frame, Delta) for frame in frames) is live
        assert len(hand.engine.ledger) == 1


async def test_retry_gets_no_answer_from_a_gateway_whose_partition_was_taken_over(tmp_path: Path) -> None:
    """The response is whole and has no frames, so that its relay asks the next owner."""
    async with gateway(tmp_path, SCRIPT) as hand:
        capability = await hand.start("s1", quirks=QUIRKS)
        await hand.ask(capability, HELLO)
        await hand.bus.producer(f"gateway-{hand.bus.partition_of(Topic.SESSIONS, 's1')}")
        body = {"model": "m", "messages": HELLO}
        assert [frame async for frame in hand.frames(capability, body, passed_on=MARKED)] == []
