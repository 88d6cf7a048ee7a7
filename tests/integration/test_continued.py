"""Answers that their engine ends early, as a pause for new weights does by default: they go on from their exact ids, unseen."""

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.integration.test_gateway import rebuilt
from tests.integration.test_live import texts
from tests.support.gateway import Hand, gateway
from tests.support.waiting import eventually

from evener.engines.scripted import Rule, Script, Wait
from evener.proto.arrays import int32s
from evener.proto.relay import Answer, Delta
from evener.proto.sessions import CallClosed, CallFailed, SessionSealed
from evener.proto.spec import Sampling, Streaming
from evener.provider_gateway.sampling import IN_VAIN
from evener.provider_gateway.timings import GATEWAY_TIMINGS, GatewayTimings

EIGHT = "one two three four five six seven eight"
LONG = "once upon a time " * 15 + "the end"
SWAPS = 12
SCRIPT = Script(
    rules=(
        Rule(match="break off", say=EIGHT, fail="abort", after=3, times=1),
        Rule(match="never begin", say=EIGHT, fail="abort", after=0),
        Rule(match="begin late", say=EIGHT, fail="abort", after=0, times=2),
        Rule(match="at its end", say=EIGHT, fail="abort", after=9, times=1),
        Rule(match="in steps", say=LONG, wait="each"),
    ),
    default=Rule(say="Hello."),
)


@pytest.fixture
async def hand(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Hand]:
    async with gateway(tmp_path, SCRIPT, timings=getattr(request, "param", GATEWAY_TIMINGS)) as opened:
        yield opened


def asking(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


async def sealed(hand: Hand, session_id: str) -> Any:
    await hand.exit(session_id)
    await hand.until(session_id, SessionSealed)
    return await rebuilt(hand, session_id)


async def closed(hand: Hand, session_id: str) -> CallClosed:
    return next(event for event in await hand.log(session_id) if isinstance(event, CallClosed))


async def tell(hand: Hand, what: str) -> None:
    """Ask the engine to pause, or to resume."""
    async with hand.http.post(f"{hand.engine.url}/{what}") as told:
        assert told.status == 200


async def another_piece(hand: Hand) -> None:
    """Wait until the gateway has asked the engine to go on: before that it asks whether it is paused."""
    await eventually(lambda: hand.engine.sampling)


async def swap_weights(hand: Hand, times: int) -> None:
    """Let the answer at the gate come some tokens further, end it by a pause, and go on with other weights; again and again."""
    for number in range(1, times + 1):
        await hand.engine.waiting()
        hand.engine.go(times=number % 3)
        await tell(hand, "pause?mode=abort")
        await hand.engine.recorded(number)
        hand.engine.publish(f"step-{number}")
        await tell(hand, "resume")
    hand.engine.go(times=None)


async def test_answer_that_the_engine_breaks_off_continues_from_its_exact_ids(hand: Hand) -> None:
    """A weight update that aborts. Each piece is given the context and what was sampled; it is one answer, and trained whole."""
    capability = await hand.start("s1")
    assert (await hand.say(capability, asking("break off")))["content"] == EIGHT
    first, second = hand.engine.ledger
    assert second.fed_ids == (*first.fed_ids, *first.sampled_ids)
    assert (await closed(hand, "s1")).choices[0].continued_at == (3,)
    assert not any(isinstance(event, CallFailed) for event in await hand.log("s1"))
    trajectory = await sealed(hand, "s1")
    assert trajectory.accounting.delivered == trajectory.accounting.sampled == len(first.sampled_ids) + len(second.sampled_ids)
    assert hand.context.registry.get_sample_value("evener_answers_continued_total") == 1


@pytest.mark.parametrize("streaming", list(Streaming))
async def test_answers_that_no_time_between_two_pauses_is_enough_for_come_through(hand: Hand, streaming: Streaming) -> None:
    """More pauses than the tries of a failing engine. The harness notices nothing; each token has the version that the ledger says."""
    capability = await hand.start("s1", streaming=streaming, sampling=Sampling())
    swapping = asyncio.create_task(swap_weights(hand, SWAPS))
    body = {"model": "m", "stream": True, "messages": asking("in steps")}
    frames = [frame async for frame in hand.frames(capability, body)]
    await swapping
    assert isinstance(frames[-1], Answer)
    assert texts(b"".join(frame.body for frame in frames if isinstance(frame, Delta | Answer))) == LONG
    pieces = hand.engine.ledger
    assert len(pieces) == SWAPS + 1
    for before, after in pairwise(pieces):
        assert after.fed_ids == (*before.fed_ids, *before.sampled_ids)
    (choice,) = (await closed(hand, "s1")).choices
    assert len(choice.continued_at) == SWAPS
    versions = [0 if label == "default" else int(label.removeprefix("step-")) for entry in pieces for label in entry.versions]
    assert int32s(choice.versions).tolist() == versions
    trajectory = await sealed(hand, "s1")
    assert trajectory.accounting.delivered == trajectory.accounting.sampled == len(versions)


async def test_answers_of_one_call_continue_each_from_its_own_ids(hand: Hand) -> None:
    capability = await hand.start("s1", sampling=Sampling())
    asked = asyncio.create_task(hand.ask(capability, asking("in steps"), n=2))
    await hand.engine.waiting(count=2)
    hand.engine.go()
    await tell(hand, "pause?mode=abort")
    hand.engine.publish("step-1")
    hand.engine.go(times=None)
    await tell(hand, "resume")
    assert [choice["message"]["content"] for choice in json.loads((await asked).body)["choices"]] == [LONG, LONG]
    trajectory = await sealed(hand, "s1")
    assert trajectory.accounting.delivered == trajectory.accounting.sampled > 0


async def test_a_piece_that_ends_before_its_first_token_is_asked_for_again(hand: Hand) -> None:
    capability = await hand.start("s1")
    assert (await hand.say(capability, asking("begin late")))["content"] == "Hello."
    assert (await closed(hand, "s1")).choices[0].continued_at == ()


@pytest.mark.parametrize("hand", [GatewayTimings(empty_piece=0.0)], indirect=True, ids=[""])
async def test_an_engine_that_never_begins_is_a_failed_one(hand: Hand) -> None:
    """Nothing is asked for ever: it is neither paused nor does it get anywhere."""
    capability = await hand.start("s1")
    answer = await hand.ask(capability, asking("never begin"))
    assert (answer.status, answer.body) == (503, b"")


async def test_pauses_before_the_first_token_are_not_counted(hand: Hand) -> None:
    """Prompts that take longer than the time between two pauses."""
    hand.engine.play(Script(default=Rule(say="Hello.", wait=(Wait(before=1),))))
    capability = await hand.start("s1")
    answering = asyncio.create_task(hand.say(capability, asking("hi")))
    for number in range(1, 2 * IN_VAIN):
        await hand.engine.waiting()
        await tell(hand, "pause?mode=abort")
        await hand.engine.recorded(number)
        await another_piece(hand)
        await tell(hand, "resume")
    hand.engine.go(times=None)
    assert (await answering)["content"] == "Hello."


async def test_answer_that_is_ended_just_at_its_end_is_not_continued_beyond_it(hand: Hand) -> None:
    """The engine was told to end it when it had sampled the last token."""
    capability = await hand.start("s1")
    assert (await hand.say(capability, asking("at its end")))["content"] == EIGHT
    assert len(hand.engine.ledger) == 1
