"""The gateway over real HTTP, on the embedded bus, with a scripted engine: its commits, answers, refusals and seals."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest
from tests.support.careful_client import post_when_told
from tests.support.engines import smollm
from tests.support.gateway import Hand, gateway
from tests.support.held import HoldThread
from tests.support.waiting import until
from tests.support.world import plain

from evener.audit.engine_ledger import check
from evener.engines.scripted import Rule, Script, ToolCall, Wait, scripted_engine
from evener.proto.arrays import int32s
from evener.proto.fleet import EngineLeft
from evener.proto.ids import new_request_id
from evener.proto.reasons import CallFailure, ExitCause, TerminationReason
from evener.proto.relay import CAPABILITY, REQUEST_ID, Admitted, Answer
from evener.proto.sessions import AttemptEnded, CallClosed, CallFailed, CallOpened, CallUndelivered, FinishReason, SessionSealed
from evener.proto.spec import Budgets, Noise, Quirks, Sampling
from evener.proto.topics import Topic
from evener.provider_gateway.failures import OVERLOADED_STATUS
from evener.provider_gateway.threads import PLACING
from evener.provider_gateway.timings import GATEWAY_TIMINGS, GatewayTimings
from evener.tokens.session import SessionLog
from evener.tokens.trajectory import build

TOOLS = [{"type": "function", "function": {"name": "run", "description": "Runs a command.", "parameters": {"type": "object"}}}]
LENGTHY = "again " * 4_050
"""More tokens than the loop parses by itself."""
SCRIPT = Script(
    rules=(
        Rule(match="at length", say=LENGTHY),
        Rule(match="at the gate", say="one two three four five six", wait=(Wait(before=4),)),
        Rule(match="say nothing", say="one", wait=(Wait(before=1),)),
        Rule(match="break", fail=400),
        Rule(match="cut once", fail="cut", times=1),
        Rule(match="cut always", fail="cut"),
        Rule(match="<tool_response>\nfour", say="It is done."),
        Rule(match="four turns", say="I look.", tool_calls=(ToolCall(name="run", arguments={"cmd": "ls"}),)),
        Rule(match="<tool_response>", say="Again.", tool_calls=(ToolCall(name="run", arguments={"cmd": "cat x"}),)),
    ),
    default=Rule(say="Hello there."),
)


IN_VAIN = pytest.mark.parametrize("hand", [GatewayTimings(in_vain=0.0)], indirect=True, ids=[""])
"""Every call without an engine has waited too long."""
A_MOMENT = pytest.mark.parametrize("hand", [GatewayTimings(in_vain=600.0)], indirect=True, ids=[""])
"""No call has waited too long."""


@pytest.fixture
async def hand(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Hand]:
    async with gateway(tmp_path, SCRIPT, context=8192, timings=getattr(request, "param", GATEWAY_TIMINGS)) as opened:
        yield opened


async def rebuilt(hand: Hand, session_id: str) -> Any:
    """Build the session from its log, and check it against the engine's ledger."""
    session = SessionLog(session_id)
    for offset, event in enumerate(await hand.log(session_id)):
        session.apply(event, offset=offset, record_at=0.0)
    trajectory = build(session)
    closed = [event for event in await hand.log(session_id) if isinstance(event, CallClosed)]
    ledger = await hand.engine.recorded(sum(len(event.choices) for event in closed))
    lines = [msgspec.json.encode(entry).decode() for entry in ledger]
    assert check([plain(trajectory)], lines) == []
    return trajectory


async def tool_turns(hand: Hand, capability: str) -> list[Any]:
    messages: list[Any] = [{"role": "user", "content": "four turns"}]
    for result in ("one", "two", "three", "four"):
        messages.append(await hand.say(capability, messages, tools=TOOLS))
        messages.append({"role": "tool", "tool_call_id": messages[-1]["tool_calls"][0]["id"], "content": result})
    messages.append(await hand.say(capability, messages, tools=TOOLS))
    return messages


async def test_tool_turns_are_fed_as_prefix_and_new_ids_and_sealed_as_one_row(hand: Hand) -> None:
    """The main path: five calls, each given exactly the ids of the last and what is new; the seal's digest is the replay's."""
    capability = await hand.start("s1")
    messages = await tool_turns(hand, capability)
    await hand.exit("s1")
    seal = await hand.until("s1", SessionSealed)

    assert messages[-1]["content"] == "It is done."
    fed = [entry.fed_ids for entry in hand.engine.ledger]
    sampled = [entry.sampled_ids for entry in hand.engine.ledger]
    for before, answer, after in zip(fed, sampled, fed[1:], strict=False):
        assert after[: len(before) + len(answer)] == (*before, *answer)
    trajectory = await rebuilt(hand, "s1")
    assert (trajectory.termination_reason, len(trajectory.rows), trajectory.inconsistencies) == (TerminationReason.FINISHED, 1, ())
    assert trajectory.rows_digest == seal.rows_digest
    assert trajectory.accounting.delivered == trajectory.accounting.sampled > 0


async def test_resend_under_the_same_request_id_is_answered_from_the_record(hand: Hand) -> None:
    """Byte for byte, streamed and not, without another sample."""
    capability = await hand.start("s1")
    for stream in (False, True):
        request_id = new_request_id()
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": stream}
        first = await hand.ask(capability, body["messages"], request_id, stream=stream)  # type: ignore[arg-type]  # a plain body
        again = await hand.ask(capability, body["messages"], request_id, stream=stream)  # type: ignore[arg-type]  # a plain body
        assert (again.body, again.recorded) == (first.body, True)
    assert len(hand.engine.ledger) == 2


async def test_same_request_in_flight_is_joined_not_sampled_twice(hand: Hand) -> None:
    """A relay that lost its connection comes back while the engine samples."""
    capability = await hand.start("s1")
    request_id = new_request_id()
    messages = [{"role": "user", "content": "at the gate"}]
    asking = asyncio.gather(hand.ask(capability, messages, request_id), hand.ask(capability, messages, request_id))
    await hand.at_the_gate()
    hand.engine.go(times=None)
    first, second = await asking
    assert first.body == second.body
    assert len(hand.engine.ledger) == 1


async def test_answer_is_in_the_log_when_it_arrives(hand: Hand) -> None:
    """Commit before anything that lets a harness act; admission is told before."""
    capability = await hand.start("s1")
    kinds = []
    async for frame in hand.frames(capability, {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}):
        kinds.append(type(frame))
        if isinstance(frame, Answer):
            assert any(isinstance(event, CallClosed) for event in await hand.log("s1"))
    assert kinds == [Admitted, Answer]


async def test_harness_that_leaves_stops_the_sampling_and_its_partial_answer_is_not_trained(hand: Hand) -> None:
    """The relay says so, and the engine stops."""
    capability = await hand.start("s1")
    request_id = new_request_id()
    asking = asyncio.create_task(hand.ask(capability, [{"role": "user", "content": "at the gate"}], request_id))
    await hand.at_the_gate()
    await hand.disconnect(capability, request_id)
    (entry,) = await hand.engine.recorded(1)
    assert entry.aborted
    await asking
    closed = await hand.until("s1", CallClosed)
    assert closed.choices[0].finish_reason is FinishReason.ABORTED
    assert 0 < len(int32s(closed.choices[0].sampled_ids)) <= len(entry.sampled_ids)
    await hand.exit("s1")
    await hand.until("s1", SessionSealed)
    assert (await rebuilt(hand, "s1")).accounting.delivered == 0


async def test_answer_that_did_not_get_through_is_an_orphan(hand: Hand) -> None:
    """The relay reports it after the commit: kept, counted, not trained."""
    capability = await hand.start("s1")
    request_id = new_request_id()
    await hand.ask(capability, [{"role": "user", "content": "hi"}], request_id)
    await hand.disconnect(capability, request_id)
    await hand.until("s1", CallUndelivered)
    await hand.exit("s1")
    await hand.until("s1", SessionSealed)
    assert (await rebuilt(hand, "s1")).accounting.delivered == 0


async def test_engine_failure_is_ours_and_ends_the_attempt_to_be_run_again(hand: Hand) -> None:
    """503 in the dialect's shape, CallFailed, AttemptEnded; the next attempt goes on."""
    capability = await hand.start("s1")
    answer = await hand.ask(capability, [{"role": "user", "content": "break"}])
    assert answer.status == 503
    assert dict(answer.headers)["retry-after"]
    assert json.loads(answer.body)["error"]["message"]
    await hand.exit("s1", code=0)
    ended = await hand.until("s1", AttemptEnded)
    assert (ended.attempt, ended.termination_reason) == (1, TerminationReason.INFRASTRUCTURE)
    capability = await hand.start("s1", attempt=2)
    await hand.say(capability, [{"role": "user", "content": "hi"}])
    await hand.exit("s1", attempt=2)
    assert (await hand.until("s1", SessionSealed)).termination_reason is TerminationReason.FINISHED


async def test_engine_that_comes_back_is_not_noticed_and_one_that_does_not_is_reported(hand: Hand) -> None:
    """The relay alone hears of the first tries (503 without a body); the last is an error in the dialect's shape."""
    capability = await hand.start("s1")
    request_id = new_request_id()
    lost = await hand.ask(capability, [{"role": "user", "content": "cut once"}], request_id)
    assert (lost.status, lost.body) == (503, b"")
    assert (await hand.ask(capability, [{"role": "user", "content": "cut once"}], request_id)).status == 200
    request_id = new_request_id()
    answers = [await hand.ask(capability, [{"role": "user", "content": "cut always"}], request_id) for _ in range(8)]
    assert [bool(answer.body) for answer in answers] == [False] * 7 + [True]
    assert [event.try_number for event in await hand.log("s1") if isinstance(event, CallOpened)] == [1, 2, *range(1, 9)]


@IN_VAIN
@pytest.mark.parametrize("code", [0, 1])
async def test_call_that_never_got_an_engine_is_our_failure_not_the_agents(hand: Hand, code: int) -> None:
    """The engine is gone, the harness waits, gives up and exits, however it says that it went: the attempt is run again."""
    capability = await hand.start("s1")
    await hand.events.send(Topic.FLEET, "e1", EngineLeft(engine_id="e1", left_at=0.0))
    await hand.fleet_is_read()
    request_id = new_request_id()
    asking = asyncio.create_task(hand.ask(capability, [{"role": "user", "content": "hi"}], request_id))
    await hand.measured("evener_calls_waiting", 1)
    await hand.disconnect(capability, request_id)
    await asking
    await hand.exit("s1", code=code)

    assert (await hand.until("s1", CallFailed)).reason is CallFailure.OVERLOADED
    assert (await hand.until("s1", AttemptEnded)).termination_reason is TerminationReason.INFRASTRUCTURE


@pytest.mark.parametrize(
    ("hand", "reason", "end"),
    [
        (GatewayTimings(silence=0.0), CallFailure.ENGINE_UNREACHABLE, AttemptEnded),
        (GatewayTimings(silence=600.0), CallFailure.CANCELLED, SessionSealed),
    ],
    indirect=["hand"],
    ids=["long", "short"],
)
async def test_harness_that_leaves_an_engine_that_says_nothing_ran_into_a_fault_of_ours(
    hand: Hand, reason: CallFailure, end: type[AttemptEnded | SessionSealed]
) -> None:
    """The engine took the call and sent no token: its harness gave up, exited with 1, and its session was graded."""
    capability, request_id = await hand.start("s1"), new_request_id()
    await hand.say(capability, [{"role": "user", "content": "hi"}])
    asking = asyncio.create_task(hand.ask(capability, [{"role": "user", "content": "say nothing"}], request_id))
    await hand.engine.waiting()
    await hand.disconnect(capability, request_id)
    await asking
    await hand.exit("s1", code=1)
    ended = await hand.until("s1", end)

    assert (await hand.until("s1", CallFailed)).reason is reason
    harness, ours = TerminationReason.HARNESS_FAILED, TerminationReason.INFRASTRUCTURE
    assert ended.termination_reason is (harness if reason is CallFailure.CANCELLED else ours)


@IN_VAIN
async def test_call_that_has_waited_when_its_harness_finishes_makes_the_attempt_ours(hand: Hand) -> None:
    """Nobody can tell whether the agent needed it. The attempt is run again, whatever the exit code."""
    waiting = await leave_a_call_in_the_queue(hand)
    await hand.exit("s1", code=0)
    assert (await hand.until("s1", CallFailed)).reason is CallFailure.OVERLOADED
    assert (await hand.until("s1", AttemptEnded)).termination_reason is TerminationReason.INFRASTRUCTURE
    hand.engine.go()
    await waiting


@A_MOMENT
@pytest.mark.parametrize(("code", "reason"), [(0, TerminationReason.FINISHED), (1, TerminationReason.HARNESS_FAILED)])
async def test_call_that_came_just_before_its_harness_ended_is_the_harnesss_own(hand: Hand, code: int, reason: TerminationReason) -> None:
    """A harness that ends abandons its side calls. Its agent keeps its own tokens."""
    waiting = await leave_a_call_in_the_queue(hand)
    await hand.exit("s1", code=code)
    assert (await hand.until("s1", SessionSealed)).termination_reason is reason
    failed = await hand.until("s1", CallFailed)
    assert (failed.reason, failed.sampled_tokens) == (CallFailure.CANCELLED, 0)
    assert (await rebuilt(hand, "s1")).accounting.delivered > 0
    hand.engine.go()
    await waiting


@A_MOMENT
async def test_call_that_an_engine_failed_has_waited_since_it_came(hand: Hand) -> None:
    """The harness leaves just after the next try of its request has begun to wait."""
    capability, request_id = await hand.start("s1"), new_request_id()
    messages = [{"role": "user", "content": "cut once"}]
    assert (await hand.ask(capability, messages, request_id)).body == b""
    await hand.events.send(Topic.FLEET, "e1", EngineLeft(engine_id="e1", left_at=0.0))
    await hand.fleet_is_read()
    asking = asyncio.create_task(hand.ask(capability, messages, request_id))
    await hand.measured("evener_calls_waiting", 1)
    await hand.exit("s1", code=1)
    await asking
    assert (await hand.until("s1", AttemptEnded)).termination_reason is TerminationReason.INFRASTRUCTURE


async def leave_a_call_in_the_queue(hand: Hand) -> "asyncio.Future[Any]":
    """Have s1 say something, then ask while another session has the only place. Once the engine goes on, both calls end."""
    await hand.limit(1)
    capability, other = await hand.start("s1"), await hand.start("s2")
    await hand.say(capability, [{"role": "user", "content": "hi"}])
    slow = asyncio.create_task(hand.ask(other, [{"role": "user", "content": "at the gate"}]))
    await hand.engine.waiting()
    waiting = asyncio.create_task(hand.ask(capability, [{"role": "user", "content": "in the background"}]))
    await hand.measured("evener_calls_waiting", 1)
    return asyncio.gather(slow, waiting)


async def test_call_that_waits_when_another_attempt_starts_stays_in_its_own(hand: Hand) -> None:
    """It is recorded when it ends, and by then another one counts."""
    await hand.limit(1)
    slow = asyncio.create_task(hand.ask(await hand.start("s2"), [{"role": "user", "content": "at the gate"}]))
    await hand.engine.waiting()
    waiting = asyncio.create_task(hand.ask(await hand.start("s1"), [{"role": "user", "content": "hi"}]))
    await hand.measured("evener_calls_waiting", 1)
    await hand.start("s1", attempt=2)
    opened = await hand.until("s1", CallOpened)
    assert (opened.attempt, opened.start_id) == (1, "s1-s1")
    hand.engine.go()
    await asyncio.gather(slow, waiting)


async def test_attempt_starts_from_nothing(hand: Hand) -> None:
    """Equal prompts do not hang on what an earlier attempt said."""
    messages: list[Any] = [{"role": "user", "content": "hi"}]
    for attempt in (1, 2):
        capability = await hand.start("s1", attempt=attempt)
        answered = [*messages, await hand.say(capability, messages)]
        await hand.say(capability, [*answered, {"role": "user", "content": "go on"}])
    opened = {event.call_id: event for event in await hand.log("s1") if isinstance(event, CallOpened)}
    parents = [event.placement.parent for event in opened.values()]
    assert [parent is not None and opened[parent.call_id].attempt for parent in parents] == [False, 1, False, 2]


async def test_last_request_that_no_gateway_could_record_ends_the_attempt_as_ours(hand: Hand) -> None:
    """Only the relay saw it; the runner tells."""
    capability = await hand.start("s1")
    await hand.say(capability, [{"role": "user", "content": "hi"}])
    await hand.exit("s1", code=1, unanswered=CallFailure.OVERLOADED)
    assert (await hand.until("s1", AttemptEnded)).termination_reason is TerminationReason.INFRASTRUCTURE


async def test_engine_that_leaves_sends_its_open_calls_elsewhere(hand: Hand) -> None:
    """A call on it is not left hanging: the relay hears at once that it is to ask again."""
    capability = await hand.start("s1")
    asking = asyncio.create_task(hand.ask(capability, [{"role": "user", "content": "at the gate"}]))
    await hand.engine.waiting()
    await hand.events.send(Topic.FLEET, "e1", EngineLeft(engine_id="e1", left_at=0.0))
    async with asyncio.timeout(60):
        assert (await asking).status == 503
    assert (await hand.until("s1", CallFailed)).reason is CallFailure.ENGINE_UNREACHABLE


async def test_votes_at_once_have_seeds_of_their_own(hand: Hand) -> None:
    """A seeded run does not give equal answers to equal prompts that are asked together."""
    hand.engine.play(Script())
    capability = await hand.start("s1", sampling=Sampling(max_tokens=8, seed=1))
    await asyncio.gather(*(hand.ask(capability, [{"role": "user", "content": "vote"}]) for _ in range(4)))
    assert len({entry.sampled_ids for entry in await hand.engine.recorded(4)}) == 4


async def test_old_start_unknown_session_and_forged_capability_leave_no_record(hand: Hand) -> None:
    """An orphan of attempt 1 calls while attempt 2 runs; somebody guesses."""
    old = await hand.start("s1")
    new = await hand.start("s1", attempt=2)
    await hand.say(new, [{"role": "user", "content": "hi"}])
    refused = await hand.ask(old, [{"role": "user", "content": "hi"}])
    assert refused.status == 400
    headers = {CAPABILITY: new[:-3] + "abc", "x-evener-request-id": new_request_id()}
    async with hand.http.post(f"{hand.url}/serve/v1/chat/completions", json={}, headers=headers) as forged:
        assert forged.status == 401
    assert len(hand.engine.ledger) == 1
    assert sum(isinstance(event, CallOpened) for event in await hand.log("s1")) == 1


async def test_client_that_waits_to_be_told_sends_its_body_unless_its_head_is_refused(hand: Hand) -> None:
    """A body is asked for once there is room for it."""
    capability, body = await hand.start("s1"), msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
    for opens, asked, status in ((capability, True, 200), (capability[:-3] + "abc", False, 401)):
        headers = {CAPABILITY: opens, REQUEST_ID: new_request_id()}
        told, response = await post_when_told(hand.url, "/serve/v1/chat/completions", headers, body)
        assert told is asked
        assert response.startswith(b"HTTP/1.1 %d " % status)
    assert (await hand.until("s1", CallClosed)).choices


async def test_malformed_request_is_refused_by_field_without_a_record(hand: Hand) -> None:
    """One clear error in the dialect's shape."""
    capability = await hand.start("s1")
    answer = await hand.ask(capability, [{"role": "usr", "content": "hi"}])
    assert (answer.status, answer.failure) == (400, CallFailure.MALFORMED)
    assert "messages[0].role" in msgspec.json.decode(answer.body)["error"]["message"]
    assert not any(isinstance(event, CallOpened) for event in await hand.log("s1"))


async def test_noise_whose_search_would_not_end_is_named(hand: Hand) -> None:
    """The pattern is of the harness's quirks, the text is the agent's."""
    capability = await hand.start("s1", quirks=Quirks(noise=(Noise(where="user", pattern="(a|aa)+$"),)))
    answer = await hand.ask(capability, [{"role": "user", "content": 60 * "a" + "!"}])
    assert answer.status == 400
    assert "the search for '(a|aa)+$' in 61 characters" in msgspec.json.decode(answer.body)["error"]["message"]
    await hand.say(capability, [{"role": "user", "content": "hi"}])


async def test_budget_ends_the_session_with_its_reason(hand: Hand) -> None:
    """The call after the last allowed one gets 400, whatever the harness's exit code says later."""
    capability = await hand.start("s1", budgets=Budgets(calls=1))
    await hand.say(capability, [{"role": "user", "content": "hi"}])
    assert (await hand.ask(capability, [{"role": "user", "content": "hi again"}])).status == 400
    await hand.exit("s1", code=1)
    assert (await hand.until("s1", SessionSealed)).termination_reason is TerminationReason.CALL_BUDGET


async def test_context_overflow_is_reported_in_the_dialect_and_ends_the_session(tmp_path: Path) -> None:
    """The prompt does not fit: 400 with OpenAI's code; a long max_tokens alone is lowered."""
    async with gateway(tmp_path, SCRIPT, context=64) as hand:
        capability = await hand.start("s1", sampling=Sampling())
        assert await hand.say(capability, [{"role": "user", "content": "hi"}], max_tokens=32000)
        answer = await hand.ask(capability, [{"role": "user", "content": "word " * 100}])
        assert json.loads(answer.body)["error"]["code"] == "context_length_exceeded"
        failed = await hand.until("s1", CallFailed)
        assert failed.reason is CallFailure.CONTEXT_OVERFLOW
        await hand.exit("s1", code=1)
        assert (await hand.until("s1", SessionSealed)).termination_reason is TerminationReason.CONTEXT_OVERFLOW


async def test_prompt_far_beyond_the_context_is_told_without_counting_all_of_it(tmp_path: Path) -> None:
    """It is the agent's, not ours, and takes a second or two, however long it is."""
    async with gateway(tmp_path, SCRIPT, context=64) as hand:
        capability = await hand.start("s1", sampling=Sampling())
        error = json.loads((await hand.ask(capability, [{"role": "user", "content": "7" * 900_000}])).body)["error"]
        assert error["code"] == "context_length_exceeded"
        assert "maximum context length is 64 tokens; " in error["message"]


async def test_several_answers_are_one_call_with_a_choice_each(hand: Hand) -> None:
    """n = 3: three choices, three rows."""
    capability = await hand.start("s1")
    answer = await hand.ask(capability, [{"role": "user", "content": "hi"}], n=3)
    assert len(json.loads(answer.body)["choices"]) == 3
    await hand.exit("s1")
    await hand.until("s1", SessionSealed)
    assert len((await rebuilt(hand, "s1")).rows) == 3


async def test_concurrent_calls_of_one_session_are_all_recorded(hand: Hand) -> None:
    """Twin sub-agents and voters: no call is lost, none is merged."""
    capability = await hand.start("s1")
    asked = [hand.say(capability, [{"role": "user", "content": f"hi {number % 3}"}]) for number in range(9)]
    await asyncio.gather(*asked)
    await hand.exit("s1")
    await hand.until("s1", SessionSealed)
    assert len((await rebuilt(hand, "s1")).rows) == 9


async def test_exit_while_a_call_is_open_aborts_it_and_seals(hand: Hand) -> None:
    """A harness that is killed in mid-call still yields its session."""
    capability = await hand.start("s1")
    asking = asyncio.create_task(hand.ask(capability, [{"role": "user", "content": "at the gate"}]))
    await hand.engine.waiting()
    await hand.exit("s1", cause=ExitCause.AGENT_TIME)
    seal = await hand.until("s1", SessionSealed)
    await asking
    assert seal.termination_reason is TerminationReason.AGENT_TIME
    assert (await rebuilt(hand, "s1")).accounting.delivered == 0


async def test_engine_that_joins_again_elsewhere_takes_the_place_of_the_dead_one(tmp_path: Path) -> None:
    """The embedded engine is started again on another port, under the same id."""
    tokenizer = smollm()
    async with (
        gateway(tmp_path, SCRIPT) as hand,
        scripted_engine(Script(default=Rule(say="From the new one.")), tokenizer, ledger=tmp_path / "second.jsonl", context=4096) as second,
    ):
        await hand.join("e1", second.url)
        capability = await hand.start("moved")
        async with asyncio.timeout(60):
            while "From the new one." not in await _asked_as_the_relay_asks(hand, capability, "Who are you?"):
                pass  # still the old one's


async def _asked_as_the_relay_asks(hand: Hand, capability: str, text: str) -> str:
    """Return an answer's body. A call that its engine lost is asked again: which engine has it at the exchange is chance."""
    messages, request_id = [{"role": "user", "content": text}], new_request_id()
    answer = await until(
        lambda: hand.ask(capability, messages, request_id), lambda told: (told.status, told.body) != (OVERLOADED_STATUS, b"")
    )
    assert answer.status == 200, answer.body
    return answer.body.decode()


@pytest.mark.parametrize("name", ["a%3Fb", "a%2Fb", "a/b", "a%0Ab", "a%25b", "%F0%9F%98%80"])
async def test_name_of_a_model_in_the_path_is_what_was_sent(hand: Hand, name: str) -> None:
    """The gateway sees the path that the relay saw: an escaped question mark began no query there."""
    capability = await hand.start("s1")
    body = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
    path = f"/v1beta/models/{name}:generateContent?key=x%26y"
    frames = [frame async for frame in hand.frames(capability, body, path=path)]

    assert isinstance(frames[-1], Answer)
    assert frames[-1].status == 200, frames[-1].body
    opened = await hand.until("s1", CallOpened)
    assert opened.model == unquote(name)


async def test_attempt_that_starts_while_a_seal_is_written_is_void(hand: Hand, hold_thread: HoldThread) -> None:
    """The seal would name it, with the end of the attempt before: all tokens would be those of an earlier attempt."""
    cutting = hold_thread("gateway.cutting")
    capability = await hand.start("s1")
    await hand.say(capability, [{"role": "user", "content": "hi"}])
    await hand.exit("s1")
    await cutting.reached()
    late = await hand.start("s1", attempt=2)
    await hand.log_is_read("s1")
    headers = {CAPABILITY: late, REQUEST_ID: new_request_id()}
    async with hand.http.post(f"{hand.url}/serve/v1/chat/completions", json={}, headers=headers) as early:
        status = early.status
    cutting.let_go()

    seal = await hand.until("s1", SessionSealed)
    built = await rebuilt(hand, "s1")
    assert (seal.attempt, seal.rows_digest, built.attempt) == (1, built.rows_digest, 1)
    assert built.accounting.delivered == seal.sampled_tokens > 0
    assert status == 503  # its relay asks again, and hears of the seal
    assert isinstance((await hand.log("s1"))[-1], SessionSealed)


async def test_seal_does_not_wait_for_the_prompts_of_other_sessions(hand: Hand) -> None:
    """It waited longer than a lease, and a finished session was run again."""
    capability, go_on = await hand.start("s1"), threading.Event()
    await hand.say(capability, [{"role": "user", "content": "hi"}])
    prompts = [PLACING.begin(go_on.wait, 60) for _ in range(8)]
    try:
        await hand.exit("s1")
        assert (await hand.until("s1", SessionSealed)).attempt == 1
    finally:
        go_on.set()
        await asyncio.gather(*prompts)


async def test_other_sessions_continue_while_a_long_answer_is_parsed(hand: Hand, hold_thread: HoldThread) -> None:
    """An answer of ten thousand tokens took the loop a tenth of a second."""
    closing = hold_thread("gateway.closing")
    capability, other = await hand.start("s1", sampling=Sampling()), await hand.start("s2")
    asking = asyncio.create_task(hand.say(capability, [{"role": "user", "content": "at length"}]))
    await closing.reached()
    await hand.ask(other, [{"role": "usr", "content": "hi"}])
    assert not asking.done()
    closing.let_go()
    assert (await asking)["content"] == LENGTHY


async def test_other_sessions_continue_while_the_rows_of_one_are_cut(hand: Hand, hold_thread: HoldThread) -> None:
    """A session of many long roots took the loop a tenth of a second, and more."""
    cutting = hold_thread("gateway.cutting")
    capability, other = await hand.start("s1"), await hand.start("s2")
    await hand.say(capability, [{"role": "user", "content": "hi"}])
    await hand.exit("s1")
    await cutting.reached()
    await hand.say(other, [{"role": "user", "content": "hi"}])
    cutting.let_go()

    seal = await hand.until("s1", SessionSealed)
    assert seal.rows_digest == (await rebuilt(hand, "s1")).rows_digest
