"""Budgets and loops, at the gateway: nothing is spent twice, and a session that has come to its end stays there."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.integration.test_gateway import rebuilt
from tests.support.gateway import POLICY, Hand, gateway

from evener.engines.scripted import Rule, Script, Wait
from evener.proto.arrays import length
from evener.proto.ids import new_request_id
from evener.proto.reasons import CallFailure, ExclusionReason, TerminationReason
from evener.proto.relay import Answer
from evener.proto.sessions import CallClosed, CallFailed, CallOpened, FinishReason, SessionSealed
from evener.proto.spec import Budgets, Sampling, Streaming
from evener.proto.topics import Topic
from evener.provider_gateway.config import Config

EIGHT = "one two three four five six seven eight"
SCRIPT = Script(
    rules=(
        Rule(match="slowly", say=EIGHT, per_token_ms=20),
        Rule(match="together", say=EIGHT, per_token_ms=20, wait=(Wait(before=2),)),
        Rule(match="by blocks", say=f"{EIGHT} {EIGHT}", block=32, wait=(Wait(before=2),)),
    ),
    default=Rule(say="Hello."),
)
HELLO = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def hand(tmp_path: Path) -> AsyncIterator[Hand]:
    async with gateway(tmp_path, SCRIPT) as opened:
        yield opened


async def closed(hand: Hand) -> list[CallClosed]:
    return [event for event in await hand.log("s1") if isinstance(event, CallClosed)]


async def sampled(hand: Hand) -> int:
    """Tokens in closed calls."""
    return sum(length(choice.sampled_ids) for call in await closed(hand) for choice in call.choices)


async def ends(hand: Hand, capability: str, end: TerminationReason) -> None:
    """Whatever is asked now is refused, and the session ends with this reason."""
    for number in range(2):
        assert (await hand.ask(capability, [{"role": "user", "content": f"still there? {number}"}])).status == 400
    await hand.exit("s1")
    assert (await hand.until("s1", SessionSealed)).termination_reason is end


async def test_calls_at_once_are_as_many_as_the_budget_says(hand: Hand) -> None:
    capability = await hand.start("s1", budgets=Budgets(calls=2))
    answers = await asyncio.gather(*(hand.ask(capability, [{"role": "user", "content": f"slowly {number}"}]) for number in range(6)))
    assert sorted(answer.status for answer in answers) == [200, 200, 400, 400, 400, 400]
    assert len(await closed(hand)) == 2
    await ends(hand, capability, TerminationReason.CALL_BUDGET)


@pytest.mark.parametrize("stream", [False, True])
async def test_call_beyond_a_budget_is_reported_before_any_headers(hand: Hand, *, stream: bool) -> None:
    """A status and a body, also where a stream was asked for."""
    capability = await hand.start("s1", budgets=Budgets(calls=1))
    await hand.say(capability, HELLO)
    for _ in range(2):
        told = await hand.ask(capability, HELLO, stream=stream)
        assert (told.status, json.loads(told.body)["error"]["message"]) == (400, "this session's budget is spent (call_budget)")


async def test_calls_that_extend_one_history_at_once_take_no_more_turns_than_the_budget_says(hand: Hand) -> None:
    """Six requests go on from the first answer in the same moment."""
    capability = await hand.start("s1", budgets=Budgets(turns=2))
    history = [*HELLO, await hand.say(capability, HELLO)]
    asked = [[*history, {"role": "user", "content": f"slowly {number}"}] for number in range(6)]
    answers = await asyncio.gather(*(hand.ask(capability, messages) for messages in asked))
    assert sorted(answer.status for answer in answers) == [200, 400, 400, 400, 400, 400]
    assert 1 + sum(isinstance(call, CallOpened) and call.placement.parent is not None for call in await hand.log("s1")) == 2 + 5
    assert len(await closed(hand)) == 2
    await ends(hand, capability, TerminationReason.TURN_BUDGET)


async def test_calls_at_once_sample_together_and_spend_the_token_budget_to_its_last_token(hand: Hand) -> None:
    """None waits for another; the last token ends them all, and what they have so far is theirs."""
    capability = await hand.start("s1", budgets=Budgets(tokens=20), sampling=Sampling())
    asked = [asyncio.create_task(hand.ask(capability, [{"role": "user", "content": f"together {number}"}])) for number in range(4)]
    await hand.engine.waiting(count=4)
    hand.engine.go(times=None)
    assert {answer.status for answer in await asyncio.gather(*asked)} == {200}
    calls = await closed(hand)
    assert sum(length(call.choices[0].sampled_ids) for call in calls) == 20
    assert FinishReason.LENGTH in {call.choices[0].finish_reason for call in calls}
    await ends(hand, capability, TerminationReason.TOKEN_BUDGET)
    books = (await rebuilt(hand, "s1")).accounting
    assert books.sampled - books.excluded.get(ExclusionReason.BUDGET, 0) == 20


async def test_tokens_that_come_when_the_budget_is_spent_are_in_the_books(hand: Hand) -> None:
    """An engine that sends several at once has sampled them."""
    capability = await hand.start("s1", budgets=Budgets(tokens=20), sampling=Sampling())
    asked = [asyncio.create_task(hand.ask(capability, [{"role": "user", "content": f"by blocks {number}"}])) for number in range(2)]
    await hand.engine.waiting(count=2)
    hand.engine.go(times=None)
    assert {answer.status for answer in await asyncio.gather(*asked)} == {200}
    sent = sum(len(entry.sampled_ids) for entry in await hand.engine.recorded(2))
    assert [call.cut_tokens for call in await closed(hand) if call.cut_tokens] == [sent - 20]
    await ends(hand, capability, TerminationReason.TOKEN_BUDGET)
    books = (await rebuilt(hand, "s1")).accounting
    assert (books.sampled, books.delivered, books.excluded) == (sent, 20, {ExclusionReason.BUDGET: sent - 20})


async def test_lone_call_may_have_all_the_tokens_that_are_left(hand: Hand) -> None:
    """The engine is asked for no more, so that it ends the answer itself."""
    capability = await hand.start("s1", budgets=Budgets(tokens=5), sampling=Sampling())
    answer = await hand.ask(capability, [{"role": "user", "content": "slowly"}])
    assert json.loads(answer.body)["choices"][0]["finish_reason"] == "length"
    (entry,) = await hand.engine.recorded(1)
    assert (len(entry.sampled_ids), entry.aborted, await sampled(hand)) == (5, False, 5)


@pytest.mark.parametrize(("answers", "status", "spent"), [(8, 400, 0), (2, 200, 4)])
async def test_several_answers_share_what_is_left(hand: Hand, answers: int, status: int, spent: int) -> None:
    """More answers than tokens are refused: none may be empty."""
    capability = await hand.start("s1", budgets=Budgets(tokens=5), sampling=Sampling())
    assert (await hand.ask(capability, [{"role": "user", "content": "slowly"}], n=answers)).status == status
    assert await sampled(hand) == spent


async def test_answer_that_another_call_cuts_short_is_streamed_no_further_than_it_is_recorded(hand: Hand) -> None:
    capability = await hand.start("s1", budgets=Budgets(tokens=9), sampling=Sampling(), streaming=Streaming.LIVE)
    asked = [asyncio.create_task(hand.ask(capability, [{"role": "user", "content": f"together {n}"}], stream=True)) for n in range(2)]
    await hand.engine.waiting(count=2)
    hand.engine.go(times=None)
    assert {answer.status for answer in await asyncio.gather(*asked)} == {200}
    assert await sampled(hand) == 9


def chat(turns: int, *more: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """A history of equal turns in Chat Completions."""
    messages: list[dict[str, Any]] = [*HELLO]
    for number in range(turns):
        call = {"id": f"x{number}", "type": "function", "function": {"name": "run", "arguments": "{}"}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages += [{"role": "tool", "tool_call_id": f"x{number}", "content": "same"}, *more]
    return "/v1/chat/completions", {"model": "m", "messages": messages}


def anthropic(turns: int, *more: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The same in Messages."""
    messages: list[dict[str, Any]] = [*HELLO]
    for number in range(turns):
        result = {"type": "tool_result", "tool_use_id": f"x{number}", "content": "same"}
        blocks = [{"type": "text", "text": message["content"]} for message in more]
        messages.append({"role": "assistant", "content": [{"type": "tool_use", "id": f"x{number}", "name": "run", "input": {}}]})
        messages.append({"role": "user", "content": [result, *blocks]})
    return "/v1/messages", {"model": "m", "max_tokens": 64, "messages": messages}


def responses(turns: int, *more: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The same in Responses."""
    items: list[dict[str, Any]] = [{"type": "message", **HELLO[0]}]
    for number in range(turns):
        items.append({"type": "function_call", "call_id": f"x{number}", "name": "run", "arguments": "{}"})
        items.append({"type": "function_call_output", "call_id": f"x{number}", "output": "same"})
        items += [{"type": "message", **message} for message in more]
    return "/v1/responses", {"model": "m", "input": items}


@pytest.mark.parametrize("dialect", [chat, anthropic, responses])
@pytest.mark.parametrize("notes", [(), ({"role": "user", "content": "<system-reminder>\nYour todo list is empty.\n</system-reminder>"},)])
async def test_looping_ends_the_session(hand: Hand, dialect: Any, notes: tuple[dict[str, Any], ...]) -> None:
    """Told with the status that ends a harness; one that goes on all the same is told again, whatever it asks, and nothing is sampled."""
    capability = await hand.start("s1", budgets=Budgets(repeats=3))

    async def ask(turns: int) -> Answer:
        path, body = dialect(turns, *notes)
        *_, last = [frame async for frame in hand.frames(capability, body, path=path)]
        assert isinstance(last, Answer)
        return last

    assert (await ask(2)).status == 200
    refused = await ask(3)
    assert (refused.status, "too often" in json.loads(refused.body)["error"]["message"]) == (400, True)
    assert (await ask(2)).status == 400
    await ends(hand, capability, TerminationReason.LOOPING)
    assert len(await closed(hand)) == 1
    assert sum(isinstance(event, CallFailed) for event in await hand.log("s1")) == 1


LOOP = chat(3)[1]["messages"]
LONG = [{"role": "user", "content": "word " * 200}]
PATIENCE_SECONDS = 3.0
"""More than any machine needs to ask once."""


@pytest.mark.parametrize(
    ("messages", "budgets", "reason"),
    [
        (LOOP, Budgets(repeats=3), CallFailure.BUDGET),
        (LONG, Budgets(), CallFailure.CONTEXT_OVERFLOW),
    ],
)
async def test_end_is_not_told_before_it_is_in_the_log(tmp_path: Path, messages: list[Any], budgets: Budgets, reason: CallFailure) -> None:
    """While that cannot be written the relay asks again, and after a while the harness hears of the log, not of the end."""
    config = Config(policies=(POLICY,), transparent_retry_seconds=PATIENCE_SECONDS)
    async with gateway(tmp_path, SCRIPT, config=config, context=128) as hand:
        capability, request_id = await hand.start("s1", budgets=budgets), new_request_id()
        with closing(sqlite3.connect(tmp_path / "bus" / "bus.sqlite", isolation_level=None)) as meddling:
            meddling.execute("CREATE TRIGGER full BEFORE INSERT ON record BEGIN SELECT RAISE(ABORT, 'disk full'); END")
            unseen = await hand.ask(capability, messages, request_id)
            assert (unseen.status, unseen.body) == (503, b"")
            await asyncio.sleep(PATIENCE_SECONDS)  # time alone ends the patience
            told = await hand.ask(capability, messages, request_id)
            assert (told.status, "the log cannot be written" in told.body.decode()) == (503, True)
            meddling.execute("DROP TRIGGER full")
        assert (await hand.ask(capability, messages, request_id)).status == 400
        assert [event.reason for event in await hand.log("s1") if isinstance(event, CallFailed)] == [reason]


@pytest.mark.parametrize(("messages", "budgets"), [(LOOP, Budgets(repeats=3)), (LONG, Budgets())])
async def test_gateway_that_is_fenced_tells_nobody_of_an_end(tmp_path: Path, messages: list[Any], budgets: Budgets) -> None:
    """It does not know yet that another one owns the session now."""
    async with gateway(tmp_path, SCRIPT, context=128) as hand:
        capability = await hand.start("s1", budgets=budgets)
        await hand.bus.producer(f"gateway-{hand.bus.partition_of(Topic.SESSIONS, 's1')}")
        frames = [frame async for frame in hand.frames(capability, {"model": "m", "messages": messages})]
        assert not any(isinstance(frame, Answer) for frame in frames)
