"""An engine that renders the messages itself: the ids that it reports decide which call a new call extends, and `matched` says so."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.integration.test_gateway import TOOLS, rebuilt
from tests.support.gateway import Hand, gateway

from evener.engines.scripted import Rule, Script, ToolCall, Wait
from evener.proto.reasons import ExclusionReason
from evener.proto.sessions import BridgedBy, CallClosed, CallOpened, Fidelity, RootReason, SessionSealed

CANONICAL = ToolCall(name="run", arguments={"cmd": "ls"})
ODD = ToolCall(name="run", arguments={"cmd": "ls"}, spelling="compact")
SCRIPT = Script(
    rules=(
        Rule(match="<tool_response>", say="Done."),
        Rule(match="plainly", tool_calls=(CANONICAL,)),
        Rule(match="oddly", tool_calls=(ODD,)),
        Rule(match="break off", say="one two three four five six", fail="abort", after=3, times=1),
        Rule(match="wait", say="one two three", wait=(Wait(before=2),)),
    ),
    default=Rule(say="Hello."),
)


@pytest.fixture
async def hand(tmp_path: Path) -> AsyncIterator[Hand]:
    """The same engine, asked on its chat path."""
    async with gateway(tmp_path, SCRIPT) as opened:
        await opened.leave_fleet("e1")
        await opened.join("e2", opened.engine.url, kind="vllm_chat")
        await opened.engines("e2")
        yield opened


async def two_turns(hand: Hand, how: str) -> None:
    capability = await hand.start("s1")
    messages: list[object] = [{"role": "user", "content": how}]
    called = await hand.say(capability, messages, tools=TOOLS)
    result = {"role": "tool", "tool_call_id": called["tool_calls"][0]["id"], "content": "x"}
    await hand.say(capability, [*messages, called, result], tools=TOOLS)
    await hand.exit("s1")
    await hand.until("s1", SessionSealed)


async def test_prompt_that_extends_the_path_is_matched(hand: Hand) -> None:
    """The engine renders the model's own spelling as it was sampled: one row."""
    await two_turns(hand, "plainly")
    (row,) = (await rebuilt(hand, "s1")).rows
    assert row.fidelity is Fidelity.MATCHED
    second = [event for event in await hand.log("s1") if isinstance(event, CallOpened)][1]
    assert (second.placement.parent is None, second.placement.bridged_by) == (False, BridgedBy.TWO_RENDERS)


async def test_prompt_with_other_ids_is_a_new_root_never_a_splice(hand: Hand) -> None:
    """An oddly spelled call is rendered canonically by the engine: the trained ids are those on which it conditioned."""
    await two_turns(hand, "oddly")
    trajectory = await rebuilt(hand, "s1")
    assert [row.root for row in trajectory.rows] == [RootReason.FIRST, RootReason.IDS_DIFFER]
    closed = [event for event in await hand.log("s1") if isinstance(event, CallClosed)]
    assert closed[0].placement is None
    assert closed[1].placement is not None
    assert trajectory.accounting.excluded == {}


async def test_answer_that_the_engine_breaks_off_continues_from_the_ids_that_it_reported(hand: Hand) -> None:
    """Rendered again, the beginning of an answer could be other ids: it is given them, and renders nothing."""
    capability = await hand.start("s1")
    said = await hand.say(capability, [{"role": "user", "content": "break off"}], tools=TOOLS)
    assert said["content"] == "one two three four five six"
    first, second = hand.engine.ledger
    assert second.fed_ids == (*first.fed_ids, *first.sampled_ids)
    await hand.exit("s1")
    await hand.until("s1", SessionSealed)
    trajectory = await rebuilt(hand, "s1")
    assert [row.fidelity for row in trajectory.rows] == [Fidelity.MATCHED]
    assert trajectory.accounting.delivered == trajectory.accounting.sampled == len(first.sampled_ids) + len(second.sampled_ids)


async def test_tokens_of_unknown_version_are_kept_and_not_trained(hand: Hand) -> None:
    """The weights changed while an engine sampled that does not say which token is whose."""
    capability = await hand.start("s1")
    asking = asyncio.create_task(hand.say(capability, [{"role": "user", "content": "wait"}], tools=TOOLS))
    await hand.engine.waiting()
    hand.engine.publish("step-1")
    hand.engine.go()
    await asking
    await hand.exit("s1")
    await hand.until("s1", SessionSealed)
    trajectory = await rebuilt(hand, "s1")
    assert trajectory.rows == ()
    assert trajectory.accounting.excluded == {ExclusionReason.VERSION_UNKNOWN: trajectory.accounting.sampled}
