"""Streaming `live`, at the gateway: text leaves as it is sampled, what lets a harness act after the commit."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.test_gateway import rebuilt
from tests.support.gateway import Hand, gateway
from tests.support.held import Hold
from tests.support.loop import turns
from tests.support.server_sent_events import values_in

from evener.engines.scripted import Rule, Script, ToolCall, Wait
from evener.proto.ids import new_request_id
from evener.proto.reasons import TerminationReason
from evener.proto.relay import Admitted, Answer, AnyFrame, Delta, Waiting
from evener.proto.sessions import AttemptEnded, CallClosed, CallFailed, CallOpened, SessionSealed
from evener.proto.spec import Streaming
from evener.provider_gateway.timings import GATEWAY_TIMINGS, GatewayTimings

SCRIPT = Script(
    rules=(
        Rule(match="step by step", say="one two three four", wait="each"),
        Rule(match="use the tool", say="I look.", tool_calls=(ToolCall(name="run", arguments={"cmd": "ls"}),), wait="each"),
        Rule(match="break unseen", say="\n\nHello my friend, here I am", wait=(Wait(before=2),), fail="cut", after=4, times=1),
        Rule(match="break half-way", say="one two three four five six", wait=(Wait(before=3),), fail="cut", after=3),
    ),
    default=Rule(say="Hello there."),
)


STREAMING_SECONDS = 3.0
"""Within this time a machine that is busy has a token in the gateway."""


@pytest.fixture
async def hand(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Hand]:
    async with gateway(tmp_path, SCRIPT, timings=getattr(request, "param", GATEWAY_TIMINGS)) as opened:
        yield opened


def body(text: str) -> dict[str, Any]:
    return {"model": "m", "stream": True, "messages": [{"role": "user", "content": text}]}


def texts(data: bytes) -> str:
    """The text in some stream events."""
    return "".join(choice["delta"].get("content") or "" for event in values_in(data) for choice in event["choices"])


async def test_each_token_waits_until_the_delta_of_the_one_before_was_received(hand: Hand) -> None:
    """Proven by time: the engine goes on only when the client has the text."""
    capability = await hand.start("s1", streaming=Streaming.LIVE)
    frames: list[AnyFrame] = []
    async for frame in hand.frames(capability, body("step by step")):
        frames.append(frame)
        if isinstance(frame, Admitted | Delta):
            hand.engine.go()
        if isinstance(frame, Delta):
            log = await hand.log("s1")
            assert any(isinstance(event, CallOpened) for event in log)
            assert not any(isinstance(event, CallClosed) for event in log)
    deltas = [frame for frame in frames if isinstance(frame, Delta)]
    assert len(deltas) >= 3
    assert isinstance(frames[-1], Answer)
    assert texts(b"".join(frame.body for frame in deltas) + frames[-1].body) == "one two three four"


async def test_tool_call_leaves_whole_and_after_the_commit(hand: Hand) -> None:
    """What was streamed is the beginning of the text that the ids spell."""
    capability = await hand.start("s1", streaming=Streaming.LIVE)
    streamed = b""
    async for frame in hand.frames(capability, body("use the tool")):
        hand.engine.go(times=100)
        if isinstance(frame, Delta):
            assert b"tool_call" not in frame.body
            streamed += frame.body
    assert isinstance(frame, Answer)
    assert b"tool_calls" in frame.body
    assert texts(streamed + frame.body) == "I look."
    await hand.exit("s1")
    await hand.until("s1", SessionSealed)
    assert (await rebuilt(hand, "s1")).accounting.delivered > 0


async def test_answer_that_is_lost_half_way_is_told_not_sampled_again(hand: Hand) -> None:
    """The harness has seen a part of it: another sampling would contradict that."""
    capability = await hand.start("s1", streaming=Streaming.LIVE)
    frames: list[AnyFrame] = []
    async for frame in hand.frames(capability, body("break half-way")):
        frames.append(frame)
        if isinstance(frame, Delta):
            hand.engine.go()
    assert any(isinstance(frame, Delta) for frame in frames)
    assert isinstance(frames[-1], Answer)
    assert frames[-1].body.startswith(b'data: {"error"')


async def listen(hand: Hand, capability: str, text: str, request_id: str | None = None) -> list[AnyFrame]:
    return [frame async for frame in hand.frames(capability, body(text), request_id)]


@pytest.mark.parametrize("hand", [GatewayTimings(streaming=STREAMING_SECONDS)], indirect=True, ids=[""])
async def test_answer_that_is_lost_before_anything_was_seen_stays_unseen(hand: Hand, hold: Hold) -> None:
    """What was about to leave does not, while its failure is committed: the relay asks again, and the harness notices nothing."""
    listening = asyncio.create_task(listen(hand, await hand.start("s1", streaming=Streaming.LIVE), "break unseen"))
    await hand.until("s1", CallOpened)
    commit = hold("gateway.commit")
    hand.engine.go()
    await commit.reached()
    await asyncio.sleep(STREAMING_SECONDS)  # so long it could leave
    commit.let_go()
    frames = await listening
    assert [type(frame) for frame in frames] == [Admitted, Waiting, Answer]
    assert isinstance(frames[-1], Answer)
    assert (frames[-1].status, frames[-1].body) == (503, b"")


async def test_session_that_ends_while_the_failure_of_its_call_waits_for_the_log_has_its_end(hand: Hand, hold: Hold) -> None:
    """The engine has failed, the opening is not committed yet, the harness exits: the call must not wait for the end that waits for it."""
    capability = await hand.start("s1", streaming=Streaming.LIVE)
    commit = hold("gateway.commit")
    listening = asyncio.create_task(listen(hand, capability, "break unseen"))
    await commit.reached()
    hand.engine.go()
    (failed,) = await hand.engine.recorded(1)
    await turns()
    await hand.exit("s1")
    await hand.log_is_read("s1")
    commit.let_go()
    ended = await hand.until("s1", AttemptEnded)
    await listening
    assert ended.termination_reason is TerminationReason.INFRASTRUCTURE
    [told] = [event for event in await hand.log("s1") if isinstance(event, CallFailed)]
    assert told.sampled_tokens == len(failed.sampled_ids)


async def test_resend_of_an_answered_call_has_the_whole_answer(hand: Hand) -> None:
    """The record does not know what had left before."""
    capability = await hand.start("s1", streaming=Streaming.LIVE)
    request_id = new_request_id()
    first = [frame async for frame in hand.frames(capability, body("hi"), request_id)]
    again = [frame async for frame in hand.frames(capability, body("hi"), request_id)]
    assert texts(b"".join(frame.body for frame in first if isinstance(frame, Delta | Answer))) == "Hello there."
    assert isinstance(again[-1], Answer)
    assert texts(again[-1].body) == "Hello there."


async def test_harness_that_leaves_a_live_answer_stops_it(hand: Hand) -> None:
    capability = await hand.start("s1", streaming=Streaming.LIVE)
    request_id = new_request_id()
    listening = asyncio.create_task(listen(hand, capability, "step by step", request_id))
    await hand.until("s1", CallOpened)
    await hand.engine.waiting()
    await hand.disconnect(capability, request_id)
    await listening
    assert (await hand.engine.recorded(1))[0].aborted
