"""Whose fault a gateway says that a missing answer is, and what becomes of the session."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.integration.sdk import NONCE, served
from tests.support.gateway import Hand, gateway

from evener.engines.scripted import Rule, Script
from evener.proto.ids import new_request_id
from evener.proto.reasons import CallFailure, TerminationReason
from evener.proto.relay import CAPABILITY, REQUEST_ID
from evener.proto.sessions import AttemptEnded, Failures, SessionSealed
from evener.proto.spec import Target
from evener.runtime.faults import at_point_in_thread

HI = [{"role": "user", "content": "hi"}]
SEEN = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}]}]


@pytest.fixture
async def hand(tmp_path: Path) -> AsyncIterator[Hand]:
    async with gateway(tmp_path, Script(default=Rule(say="hello"))) as opened:
        yield opened


async def status(hand: Hand, capability: str) -> int:
    """Ask, and return an answer that has no frames."""
    headers = {CAPABILITY: capability, REQUEST_ID: new_request_id()}
    async with hand.http.post(f"{hand.url}/serve/v1/chat/completions", json={"model": "m", "messages": HI}, headers=headers) as answer:
        return answer.status


async def test_only_a_session_that_is_known_to_have_ended_is_said_to_have_ended(hand: Hand) -> None:
    """A capability that cannot be opened, and a session of which this gateway knows nothing, are its own trouble."""
    capability = await hand.start("s1")
    await hand.say(capability, HI)
    assert await status(hand, capability + "x") == 401
    other = await hand.start("s2")
    await hand.exit("s1")
    await hand.until("s1", SessionSealed)
    assert await status(hand, capability) == 410
    assert (await hand.ask(other, HI)).status == 200


async def test_session_whose_start_did_not_count_here_is_not_known(hand: Hand) -> None:
    """As where two deployments share a log's address and not its records."""
    started = await hand.start("s1")
    await hand.say(started, HI)
    unknown = hand.capability("never-started", like=started)
    assert await status(hand, unknown) == 404


async def test_policy_that_this_gateway_does_not_have_is_not_told_to_the_harness(hand: Hand) -> None:
    """Only the relay learns of the fault, and asks again."""
    capability = await hand.start("s1", models={"other": Target(policy="elsewhere")})
    answer = await hand.ask(capability, HI, model="other")
    assert (answer.status, answer.body, answer.failure) == (503, b"", None)
    assert answer.detail == "policy 'elsewhere' of run 'run' is not known to this gateway"
    await hand.exit("s1", code=1, unanswered=CallFailure.OVERLOADED)
    assert (await hand.until("s1", AttemptEnded)).termination_reason is TerminationReason.INFRASTRUCTURE


@pytest.mark.parametrize(
    ("fields", "failure"),
    [
        ({"messages": "none"}, CallFailure.MALFORMED),
        ({"messages": []}, CallFailure.MALFORMED),
        ({"temperature": "hot"}, CallFailure.MALFORMED),
        ({"stop": ["END"]}, CallFailure.REFUSED),
        ({"logprobs": True}, CallFailure.REFUSED),
        ({"messages": SEEN}, CallFailure.REFUSED),
        ({"model": "forbidden"}, CallFailure.MODEL_REFUSED),
        ({"messages": [{"role": "user", "content": "long " * 5000}]}, CallFailure.CONTEXT_OVERFLOW),
    ],
    ids=lambda value: value if isinstance(value, CallFailure) else "+".join(value),
)
async def test_answer_says_whose_fault_it_is(hand: Hand, fields: dict[str, Any], failure: CallFailure) -> None:
    """The relay counts by it; what the harness is told is its detail."""
    capability = await hand.start("s1", models={"forbidden": Target(refuse="too dear")})
    answer = await hand.ask(capability, **({"messages": HI} | fields))
    assert (answer.status, answer.failure) == (400, failure)
    assert answer.detail
    assert answer.detail in answer.body.decode().replace('\\"', '"')


async def test_attempt_whose_call_was_refused_is_sealed_as_refused_by_name_and_not_run_again(hand: Hand) -> None:
    """What the agent did after it says nothing about the agent, however well the harness went on."""
    capability = await hand.start("s1")
    refused = await hand.ask(capability, HI, stop=["END"])
    await hand.say(capability, HI)
    failures = (Failures(reason=CallFailure.REFUSED, count=1, detail=refused.detail),)
    await hand.exit("s1", failures=failures)
    seal = await hand.until("s1", SessionSealed)
    assert (seal.termination_reason, seal.attempt) == (TerminationReason.REFUSED, 1)
    assert seal.detail.startswith("stop: stop strings are not supported")


async def test_bug_before_a_call_begins_is_reported_in_the_dialect_counted_and_logged_once(tmp_path: Path) -> None:
    """The relay sent such a request again and again, and nobody learned why."""

    def fail() -> None:
        raise ZeroDivisionError

    async with served(tmp_path, Script(default=Rule(say="Hello."))) as session:
        body = {"model": "policy", "messages": [{"role": "user", "content": "hi"}]}
        url, headers = f"{session.url}/v1/chat/completions", {"authorization": f"Bearer {NONCE}"}
        with at_point_in_thread("gateway.reading", fail), capture_logs() as logged:
            async with session.hand.http.post(url, json=body, headers=headers) as answer:
                assert answer.status == 503
                assert b"the gateway failed" in await answer.read()
        assert [entry["session_id"] for entry in logged if entry["event"] == "call_crashed"] == ["s1"]
        assert [(failures.reason, failures.count) for failures in session.report.failures] == [(CallFailure.ENGINE_ERROR, 1)]
        assert session.report.unanswered is not None
