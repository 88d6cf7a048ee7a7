"""Waits of calls: full queues before anything is read, paused engines, failed tries. None of them is the agent's time."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.integration.sdk import LIMITS, NONCE, Served, served
from tests.integration.test_gateway import rebuilt
from tests.support.gateway import POLICY, Hand, gateway
from tests.support.loop import turns
from tests.support.spans import Spans
from tests.support.waiting import eventually, until

from evener.engines.scripted import Rule, Script, Wait
from evener.engines.vllm_weights import VllmWeights
from evener.proto.ids import new_request_id
from evener.proto.reasons import CallFailure, TerminationReason
from evener.proto.relay import CAPABILITY, DISCONNECT_PATH, MOVING, REQUEST_ID, Answer, Waiting
from evener.proto.sessions import AttemptEnded, CallFailed, CallOpened, SessionSealed, SessionStarted
from evener.proto.spec import Quirks
from evener.proto.topics import Topic
from evener.provider_gateway.config import Config

EIGHT = "one two three four five six seven eight"
SCRIPT = Script(
    rules=(
        Rule(match="at the gate", say=EIGHT, wait=(Wait(before=4),)),
        Rule(match="in vain", say=EIGHT, per_token_ms=100, fail="cut", times=1),
    ),
    default=Rule(say="Hello."),
)
HELLO = [{"role": "user", "content": "hi"}]
GATED = [{"role": "user", "content": "at the gate"}]


def config(**fields: Any) -> Config:
    return Config(policies=(POLICY,), queue=0, **fields)


async def post(hand: Hand, capability: str, body: bytes) -> tuple[int, str | None]:
    """Ask without reading frames; return status and Retry-After."""
    headers = {CAPABILITY: capability, REQUEST_ID: new_request_id()}
    async with hand.http.post(f"{hand.url}/serve/v1/chat/completions", data=body, headers=headers) as answer:
        await answer.read()
        return answer.status, answer.headers.get("retry-after")


async def owned(hand: Hand, capability: str) -> bool:
    """Return whether the gateway has the partition of a capability. That a seal is being written is a 503 of its own."""
    async with hand.http.post(hand.url + DISCONNECT_PATH.format(request_id=new_request_id()), headers={CAPABILITY: capability}) as told:
        return MOVING not in told.headers


async def test_call_is_held_unread_while_the_queue_is_full_and_comes_in_when_there_is_room(tmp_path: Path) -> None:
    """Not even a body that cannot be served is looked at before."""
    async with gateway(tmp_path, SCRIPT, config=config()) as hand:
        await hand.limit(1)
        first, second = await hand.start("s1"), await hand.start("s2")
        slow = asyncio.create_task(hand.ask(first, GATED))
        await hand.at_the_gate()
        broken = asyncio.create_task(hand.ask(second, "no list"))
        held = [asyncio.create_task(hand.ask(second, [{"role": "user", "content": f"hi {number}"}])) for number in range(3)]
        await turns()
        assert not any(task.done() for task in (broken, *held))
        hand.engine.go()
        assert (await slow).status == 200
        assert [answer.status for answer in await asyncio.gather(*held)] == [200] * 3
        assert (await broken).failure is CallFailure.MALFORMED


async def test_call_whose_body_would_be_too_much_memory_together_with_others_is_held_unread(tmp_path: Path) -> None:
    """Sixteen harnesses with 30 MB each took 1.5 GB."""
    async with gateway(tmp_path, SCRIPT, config=config(bodies_bytes=1024)) as hand:
        first, second = await hand.start("s1"), await hand.start("s2")
        slow = asyncio.create_task(hand.ask(first, [*GATED, {"role": "assistant", "content": "x" * 900}, *GATED]))
        await hand.at_the_gate()
        large = asyncio.create_task(hand.ask(second, [{"role": "user", "content": "x" * 900}]))
        small = asyncio.create_task(hand.ask(second, [{"role": "user", "content": "hi"}]))
        await turns()
        assert not any(task.done() for task in (large, small))
        assert len([event for event in await hand.log("s2") if isinstance(event, CallOpened)]) == 0
        hand.engine.go()
        assert [answer.status for answer in await asyncio.gather(slow, large, small)] == [200] * 3


async def test_span_of_a_call_begins_where_the_call_waits_to_be_admitted(spans: Spans, tmp_path: Path) -> None:
    """The wait in full queues is part of its time."""
    async with gateway(tmp_path, SCRIPT, config=config()) as hand:
        await hand.limit(1)
        first, second = await hand.start("s1"), await hand.start("s2")
        slow = asyncio.create_task(hand.ask(first, GATED))
        await hand.at_the_gate()
        held = asyncio.create_task(hand.ask(second, HELLO))
        await turns()
        let_go_at = time.time_ns()
        hand.engine.go()
        await asyncio.gather(slow, held)
    call = next(one for one in spans.all("call") if one.attributes and one.attributes["evener.session.id"] == "s2")
    [admitted] = call.events
    assert admitted.name == "admitted"
    assert (call.start_time or 0) < let_go_at <= admitted.timestamp


async def test_body_of_unknown_length_is_not_read(tmp_path: Path) -> None:
    """It would not count to what the bodies of all calls may take together."""
    async with gateway(tmp_path, SCRIPT) as hand:
        headers = {CAPABILITY: await hand.start("s1"), REQUEST_ID: new_request_id()}

        async def chunks() -> AsyncIterator[bytes]:
            yield b"{}"

        async with hand.http.post(f"{hand.url}/serve/v1/chat/completions", data=chunks(), headers=headers) as answer:
            assert answer.status == 411


async def test_call_that_is_held_too_long_leaves_nothing_in_the_log(tmp_path: Path) -> None:
    """503 with Retry-After: the relay asks again until its own limit."""
    async with gateway(tmp_path, SCRIPT, config=config(admission_timeout_seconds=0.2)) as hand:
        await hand.limit(1)
        first, second = await hand.start("s1"), await hand.start("s2")
        slow = asyncio.create_task(hand.ask(first, GATED))
        await hand.at_the_gate()
        assert await post(hand, second, b"no JSON") == (503, "5")
        hand.engine.go()
        assert (await slow).status == 200
        assert [type(event) for event in await hand.log("s2")] == [SessionStarted]


async def test_resend_of_a_call_that_came_in_before_is_not_held(tmp_path: Path) -> None:
    """It joins what is being sampled, although engine and queue are full of it."""
    async with gateway(tmp_path, SCRIPT, config=config(admission_timeout_seconds=0.2)) as hand:
        await hand.limit(1)
        capability, request_id = await hand.start("s1"), new_request_id()
        first = asyncio.create_task(hand.ask(capability, GATED, request_id))
        await hand.at_the_gate()
        second = await hand.admitted(capability, GATED, request_id)
        hand.engine.go()
        assert (await second).body == (await first).body
        assert len(hand.engine.ledger) == 1


async def test_session_that_has_ended_hears_so_although_the_queue_is_full(tmp_path: Path) -> None:
    async with gateway(tmp_path, SCRIPT, config=config(admission_timeout_seconds=0.2)) as hand:
        await hand.limit(1)
        old, new = await hand.start("s1"), await hand.start("s1", attempt=2)
        slow = asyncio.create_task(hand.ask(new, GATED))
        await hand.at_the_gate()
        assert (await hand.ask(old, HELLO)).status == 400
        hand.engine.go()
        await slow


async def test_call_whose_partition_is_lost_while_it_is_held_is_sent_elsewhere(tmp_path: Path) -> None:
    """Not served by an owner that can commit nothing any more."""
    async with gateway(tmp_path, SCRIPT, config=config()) as hand:
        await hand.limit(1)
        names = [f"s{number}" for number in range(20)]
        lost = [name for name in names if hand.bus.partition_of(Topic.SESSIONS, name) == 0]
        kept = next(name for name in names if hand.bus.partition_of(Topic.SESSIONS, name) != 0)
        capability, ending = await hand.start(lost[0]), await hand.start(lost[1])
        assert (await hand.ask(capability, HELLO)).status == 200
        slow = asyncio.create_task(hand.ask(await hand.start(kept), GATED))
        await hand.at_the_gate()
        held = asyncio.create_task(post(hand, capability, msgspec.json.encode({"model": "m", "messages": GATED})))
        await turns()
        await hand.bus.producer("gateway-0")
        await hand.exit(lost[1])  # it finds out when it writes the end
        await until(lambda: owned(hand, ending), lambda owns: not owns)
        assert not held.done()
        hand.engine.go()
        assert (await slow).status == 200
        assert await held == (503, "1")


async def test_request_that_needs_no_engine_takes_no_place(tmp_path: Path) -> None:
    """A retry that joins its twin, and prompts that are only counted."""
    async with gateway(tmp_path, SCRIPT, config=config(admission_timeout_seconds=5.0)) as hand:
        await hand.limit(2)
        first, second = await hand.start("s1", quirks=Quirks(retry_header="x-retry")), await hand.start("s2")
        slow = [asyncio.create_task(hand.ask(first, GATED))]
        await hand.at_the_gate()
        slow.append(asyncio.create_task(hand.ask(first, GATED, passed_on={"x-retry": "1"})))
        for _ in range(2):
            body = {"model": "m", "messages": HELLO}
            *_, counted = [frame async for frame in hand.frames(second, body, path="/v1/messages/count_tokens")]
            assert isinstance(counted, Answer)
            assert counted.status == 200
        assert (await hand.ask(second, HELLO)).status == 200
        hand.engine.go()
        assert {answer.status for answer in await asyncio.gather(*slow)} == {200}


@asynccontextmanager
async def crowded(folder: Path, *, quirks: Quirks | None = None, **limits: float) -> AsyncIterator[tuple[Served, asyncio.Task[Answer]]]:
    """A served session beside another one, which has the only place of the only engine."""
    relay = msgspec.structs.replace(LIMITS, **limits)
    async with served(folder, SCRIPT, config=config(admission_timeout_seconds=0.3), limits=relay, quirks=quirks) as session:
        await session.hand.limit(1)
        other = asyncio.create_task(session.hand.ask(await session.hand.start("s2"), GATED))
        await session.hand.at_the_gate()
        yield session, other


class Time:
    """How the time of a session passes from now on."""

    def __init__(self, session: Served) -> None:
        self._session = session
        self._spent, self._began = session.clock.seconds(), time.monotonic()

    def taken_out(self) -> float:
        """Return the seconds that were not the agent's, at least."""
        now = time.monotonic()
        return now - self._began - (self._session.clock.seconds() - self._spent)

    async def stands(self, seconds: float) -> None:
        """Wait until so much was not the agent's."""
        await eventually(lambda: self.taken_out() >= seconds)


async def ask(session: Served, text: str = "hi", **fields: Any) -> tuple[int, str | None, Any]:
    """Ask as a harness; return status, Retry-After and the body."""
    body = {"model": "policy", "messages": [{"role": "user", "content": text}], **fields}
    async with session.hand.http.post(
        f"{session.url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {NONCE}"}
    ) as answer:
        return answer.status, answer.headers.get("retry-after"), json.loads(await answer.read())


async def test_harness_of_a_call_that_is_not_admitted_hears_503_and_its_attempt_is_run_again(tmp_path: Path) -> None:
    """No prompt is recorded: that the last request had no answer for our reasons stands in HarnessExited."""
    async with crowded(tmp_path, admission_seconds=1.5) as (session, other):
        passing = Time(session)
        status, retry_after, body = await ask(session)
        assert (status, retry_after, body["error"]["type"]) == (503, "5", "overloaded_error")
        assert session.report.unanswered is not None
        assert session.report.unanswered.reason is CallFailure.OVERLOADED
        assert passing.taken_out() > 0.75
        session.hand.engine.go()
        assert (await other).status == 200
        await session.hand.exit("s1", code=1, unanswered=session.report.unanswered.reason)
        assert (await session.hand.until("s1", AttemptEnded)).termination_reason is TerminationReason.INFRASTRUCTURE
        assert not any(isinstance(event, CallFailed) for event in await session.hand.log("s1"))


async def test_retry_of_a_vote_that_was_not_admitted_has_an_answer_of_its_own(tmp_path: Path) -> None:
    """The log knows nothing of it; an equal request was answered meanwhile, and that answer is another voter's."""
    async with crowded(tmp_path, quirks=Quirks(retry_header="x-retry"), admission_seconds=2.0) as (session, other):
        assert (await ask(session))[0] == 503
        session.hand.engine.go()
        assert (await other).status == 200
        for retries, sampled in (("0", 1), ("1", 2), ("1", 2)):
            body = {"model": "policy", "messages": HELLO}
            headers = {"authorization": f"Bearer {NONCE}", "x-retry": retries}
            async with session.hand.http.post(f"{session.url}/v1/chat/completions", json=body, headers=headers) as answer:
                assert answer.status == 200
            assert sum(isinstance(event, CallOpened) for event in await session.hand.log("s1")) == sampled
        await session.sealed()


async def test_wait_for_an_engine_is_not_the_agents_time(tmp_path: Path) -> None:
    async with crowded(tmp_path) as (session, other):
        passing = Time(session)
        asking = asyncio.create_task(ask(session))
        await passing.stands(0.5)
        session.hand.engine.go()
        assert (await asking)[0] == 200
        assert (await other).status == 200


@pytest.mark.parametrize(("stream", "mode"), [(False, "keep"), (True, "keep"), (True, "abort")])
async def test_pause_of_the_engine_is_not_the_agents_time_and_is_reported_while_it_lasts(
    tmp_path: Path, *, stream: bool, mode: str
) -> None:
    """New weights are loaded in mid-answer, which stays or is ended: the agent's clock stands, so that a long update ends nobody."""
    async with served(tmp_path, SCRIPT) as session:
        control = VllmWeights(session.hand.engine.url)
        asking = asyncio.create_task(
            session.hand.http.post(
                f"{session.url}/v1/chat/completions",
                json={"model": "policy", "messages": GATED, "stream": stream},
                headers={"authorization": f"Bearer {NONCE}"},
            )
        )
        await session.hand.at_the_gate()
        async with session.hand.http.post(f"{session.hand.engine.url}/pause?mode={mode}") as paused:
            assert paused.status == 200
        await Time(session).stands(2.0)
        session.hand.engine.go(times=None)
        await control.resume()
        await control.aclose()
        async with await asking as answer:
            assert answer.status == 200
            await answer.read()
        await session.sealed()


async def test_try_in_vain_is_not_the_agents_time(tmp_path: Path) -> None:
    """The engine breaks off after eight tokens; the answer comes from the next try."""
    async with served(tmp_path, SCRIPT) as session:
        passing = Time(session)
        status, _, body = await ask(session, "in vain")
        assert (status, body["choices"][0]["message"]["content"]) == (200, "Hello.")
        assert passing.taken_out() > 0.5


async def test_relay_that_comes_late_is_not_told_of_waits_before_it_came(tmp_path: Path) -> None:
    """It joins a call whose engine was paused; from then on it hears of the pause as the first one does."""
    async with gateway(tmp_path, SCRIPT) as hand:
        capability, request_id = await hand.start("s1"), new_request_id()

        async def listen(waits: list[float]) -> None:
            async for frame in hand.frames(capability, {"model": "m", "messages": GATED}, request_id):
                waits += [frame.seconds] if isinstance(frame, Waiting) else []

        async def told(waits: list[float], seconds: float) -> None:
            await eventually(lambda: sum(waits) > seconds)

        control = VllmWeights(hand.engine.url)
        first, second = list[float](), list[float]()
        listening = [asyncio.create_task(listen(first))]
        await hand.at_the_gate()
        await control.pause()
        await told(first, 1.0)
        before = sum(first)
        listening.append(asyncio.create_task(listen(second)))
        await told(second, 0.0)
        hand.engine.go()
        await control.resume()
        await control.aclose()
        await asyncio.gather(*listening)
        assert sum(second) < sum(first) - before + 0.001
        await hand.exit("s1")
        await hand.until("s1", SessionSealed)
        assert (await rebuilt(hand, "s1")).inconsistencies == ()
