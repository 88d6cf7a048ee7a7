"""What goes wrong around a gateway: engines that die, break off, drain and come back; budgets that many calls spend at once."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from importlib.resources import files
from pathlib import Path

import pytest
from msgspec import structs
from tests.integration.test_gateway import rebuilt
from tests.support.engines import smollm
from tests.support.gateway import POLICY, Hand, gateway

from evener.engines.scripted import Rule, Script, Wait, scripted_engine
from evener.proto.fleet import EngineDraining
from evener.proto.ids import new_request_id
from evener.proto.reasons import CallFailure, ExclusionReason
from evener.proto.sessions import CallFailed, CallOpened, RootReason, SessionSealed
from evener.proto.spec import Quirks, Sampling, Tolerance
from evener.proto.topics import Topic
from evener.provider_gateway.config import Config

EIGHT = "one two three four five six seven eight"
SCRIPT = Script(
    rules=(Rule(match="slowly", say=EIGHT, wait=(Wait(before=4),)),),
    default=Rule(say="Hello."),
)
HELLO = [{"role": "user", "content": "hi"}]
CRASHES = '{% if messages and messages[0].content == "crash" %}{{ "x" * 10 ** 17 }}{% endif %}'
"""The beginning of a template that needs more memory than there is for one message."""


@pytest.fixture
async def hand(tmp_path: Path) -> AsyncIterator[Hand]:
    async with gateway(tmp_path, SCRIPT) as opened:
        yield opened


async def test_engine_that_died_is_not_asked_again_while_another_answers(hand: Hand) -> None:
    """Although its session's prefixes are in its cache."""
    capability = await hand.start("s1")
    async with scripted_engine(SCRIPT, smollm()) as second:
        await hand.events.send(Topic.FLEET, "e1", EngineDraining(engine_id="e1", draining_at=time.time()))
        await hand.join("e2", second.url)
        await hand.engines("e1", "e2")
        await hand.ask(capability, HELLO)
        assert [event.engine_id for event in await hand.log("s1") if isinstance(event, CallOpened)] == ["e2"]
    await hand.join("e1", hand.engine.url)
    await hand.fleet_is_read()
    request_id = new_request_id()
    assert (await hand.ask(capability, HELLO, request_id)).body == b""
    assert (await hand.ask(capability, HELLO, request_id)).status == 200
    assert [event.engine_id for event in await hand.log("s1") if isinstance(event, CallOpened)] == ["e2", "e2", "e1"]


async def test_harness_is_told_the_context_and_the_operator_the_engines_own_words(tmp_path: Path) -> None:
    async with gateway(tmp_path, Script(default=Rule(fail=500)), context=64) as hand:
        capability = await hand.start("s1")
        long = await hand.ask(capability, [{"role": "user", "content": "word " * 200}])
        assert "maximum context length is 64 tokens" in json.loads(long.body)["error"]["message"]
        await hand.ask(capability, HELLO)
        failed = [event for event in await hand.log("s1") if isinstance(event, CallFailed)]
        assert failed[0].reason is CallFailure.CONTEXT_OVERFLOW
        assert "500" in failed[1].detail


async def test_marked_retry_of_one_voter_does_not_take_the_others_answer(hand: Hand) -> None:
    """The first one's connection broke in mid-answer while its twin samples on: each keeps an answer of its own."""
    capability = await hand.start("s1", quirks=Quirks(retry_header="x-stainless-retry-count"))
    messages = [{"role": "user", "content": "slowly"}]
    first = new_request_id()
    asking = await hand.admitted(capability, messages, first)
    voter = await hand.admitted(capability, messages)
    await hand.engine.waiting(count=2)
    await hand.disconnect(capability, first)
    await asking
    retry = await hand.admitted(capability, messages, passed_on={"x-stainless-retry-count": "1"})
    hand.engine.go(times=None)
    await asyncio.gather(retry, voter)
    await hand.exit("s1")
    await hand.until("s1", SessionSealed)
    assert len((await rebuilt(hand, "s1")).rows) == 2


async def test_sampled_call_with_a_number_that_no_client_can_hold_is_text_and_the_session_goes_on(tmp_path: Path) -> None:
    """A weak policy writes four hundred ones, of which JavaScript would make Infinity, and send back null."""
    call = f'<tool_call>\n{{"name": "run", "arguments": {{"n": {"1" * 400}}}}}\n</tool_call>'
    script = Script(rules=(Rule(match="result", say="Done."),), default=Rule(say=call))
    async with gateway(tmp_path, script) as hand:
        capability = await hand.start("s1", quirks=Quirks(tolerances=(Tolerance.NUMBERS_LOOSE,)), sampling=Sampling())
        said = await hand.say(capability, HELLO)
        assert "tool_calls" not in said
        assert said["content"] == call
        await hand.say(capability, [*HELLO, said, {"role": "user", "content": "result"}])
        opened = [event for event in await hand.log("s1") if isinstance(event, CallOpened)]
        assert opened[1].placement.parent is not None


async def test_crash_in_placing_is_recorded_as_a_fault_of_evener(tmp_path: Path) -> None:
    """A session whose last call we broke must not be graded as if the agent had stopped there."""
    template = tmp_path / "crashes.jinja"
    template.write_text(CRASHES + (files("evener.templates") / "bundled/chatml_tools.jinja").read_text())
    policy = structs.replace(POLICY, template=str(template))
    async with gateway(tmp_path, SCRIPT, config=Config(policies=(policy,))) as hand:
        answer = await hand.ask(await hand.start("s1"), [{"role": "user", "content": "crash"}])
        assert answer.status == 503
        opened, failed = (await hand.log("s1"))[1:]
        assert isinstance(opened, CallOpened)
        assert opened.placement.root is RootReason.INCONSISTENT
        assert isinstance(failed, CallFailed)
        assert "MemoryError" in failed.detail


async def test_tokens_sampled_otherwise_than_their_logprobs_say_are_kept_and_not_trained(hand: Hand) -> None:
    """The engine reports logprobs of temperature 1; at 0.7 they are not those of what was sampled."""
    capability = await hand.start("s1", sampling=Sampling(temperature=0.7, max_tokens=64))
    await hand.say(capability, HELLO)
    await hand.exit("s1")
    await hand.until("s1", SessionSealed)
    accounting = (await rebuilt(hand, "s1")).accounting
    assert accounting.sampled > 0
    assert accounting.excluded == {ExclusionReason.CONSTRAINED: accounting.sampled}
