"""What keeps a call waiting: full queues before anything is read, paused engines, tries in vain. None of it is the agent's time."""

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

from evener.engines.scripted import Rule, Script
from evener.engines.vllm_weights import VllmWeights
from evener.proto.fleet import EngineJoined
from evener.proto.ids import new_request_id
from evener.proto.reasons import CallFailure, TerminationReason
from evener.proto.relay import CAPABILITY, LEFT_PATH, REQUEST_ID, Answer, Waiting
from evener.proto.sessions import AttemptEnded, CallFailed, CallOpened, SessionSealed, SessionStarted
from evener.proto.spec import Quirks
from evener.proto.topics import Topic
from evener.provider_gateway.config import Config

EIGHT = "one two three four five six seven eight"
SCRIPT = Script(
    rules=(
        Rule(match="slowly", say=EIGHT, per_token_ms=100),
        Rule(match="in vain", say=EIGHT, per_token_ms=100, fail="cut", times=1),
    ),
    default=Rule(say="Hello."),
)
HELLO = [{"role": "user", "content": "hi"}]
SLOWLY = [{"role": "user", "content": "slowly"}]


def config(**fields: Any) -> Config:
    return Config(policies=(POLICY,), queue=0, **fields)


async def limit_engine(hand: Hand, calls: int) -> None:
    """The engine takes so many calls at once."""
    joined = EngineJoined(
        engine_id="e1", kind="scripted", url=hand.engine.url, policy="policy", joined_at=time.time(), max_concurrency=calls
    )
    await hand.events.send(Topic.FLEET, "e1", joined)
    await asyncio.sleep(0.3)


async def sampling(hand: Hand, calls: int) -> None:
    """Wait until the engine samples for so many calls."""
    async with asyncio.timeout(60):
        while hand.engine.sampling < calls:  # noqa: ASYNC110 - the engine has a counter, no event
            await asyncio.sleep(0.005)


async def post(hand: Hand, capability: str, body: bytes) -> tuple[int, str | None]:
    """Ask without reading frames; return status and Retry-After."""
    headers = {CAPABILITY: capability, REQUEST_ID: new_request_id()}
    async with hand.http.post(f"{hand.url}/serve/v1/chat/completions", data=body, headers=headers) as answer:
        await answer.read()
        return answer.status, answer.headers.get("retry-after")


async def leaving(hand: Hand, capability: str) -> int:
    """Say that a harness left; return the status."""
    async with hand.http.post(hand.url + LEFT_PATH.format(request_id=new_request_id()), headers={CAPABILITY: capability}) as told:
        return told.status


async def test_call_is_held_unread_while_the_queue_is_full_and_comes_in_when_there_is_room(tmp_path: Path) -> None:
    """Not even a body that cannot be served is looked at before."""
    async with gateway(tmp_path, SCRIPT, config=config()) as hand:
        await limit_engine(hand, 1)
        first, second = await hand.start("s1"), await hand.start("s2")
        slow = asyncio.create_task(hand.ask(first, SLOWLY))
        await sampling(hand, 1)
        broken = asyncio.create_task(hand.ask(second, "no list"))
        held = [asyncio.create_task(hand.ask(second, [{"role": "user", "content": f"hi {number}"}])) for number in range(3)]
        await asyncio.sleep(0.3)
        assert not any(task.done() for task in (broken, *held))
        assert (await slow).status == 200
        assert [answer.status for answer in await asyncio.gather(*held)] == [200] * 3
        assert (await broken).failure is CallFailure.MALFORMED


async def test_call_that_is_held_too_long_leaves_nothing_in_the_log(tmp_path: Path) -> None:
    """503 with Retry-After: the relay asks again until its own limit."""
    async with gateway(tmp_path, SCRIPT, config=config(admission_timeout_seconds=0.2)) as hand:
        await limit_engine(hand, 1)
        first, second = await hand.start("s1"), await hand.start("s2")
        slow = asyncio.create_task(hand.ask(first, SLOWLY))
        await sampling(hand, 1)
        assert await post(hand, second, b"no JSON") == (503, "5")
        assert (await slow).status == 200
        assert [type(event) for event in await hand.log("s2")] == [SessionStarted]


async def test_resend_of_a_call_that_came_in_before_is_not_held(tmp_path: Path) -> None:
    """It joins what is being sampled, although engine and queue are full of it."""
    async with gateway(tmp_path, SCRIPT, config=config(admission_timeout_seconds=0.2)) as hand:
        await limit_engine(hand, 1)
        capability, request_id = await hand.start("s1"), new_request_id()
        first = asyncio.create_task(hand.ask(capability, SLOWLY, request_id))
        await sampling(hand, 1)
        assert (await hand.ask(capability, SLOWLY, request_id)).body == (await first).body
        assert len(hand.engine.ledger) == 1


async def test_session_that_has_ended_hears_so_although_the_queue_is_full(tmp_path: Path) -> None:
    async with gateway(tmp_path, SCRIPT, config=config(admission_timeout_seconds=0.2)) as hand:
        await limit_engine(hand, 1)
        old, new = await hand.start("s1"), await hand.start("s1", attempt=2)
        slow = asyncio.create_task(hand.ask(new, SLOWLY))
        await sampling(hand, 1)
        assert (await hand.ask(old, HELLO)).status == 400
        await slow


async def test_call_whose_partition_is_lost_while_it_is_held_is_sent_elsewhere(tmp_path: Path) -> None:
    """Not served by an owner that can commit nothing any more."""
    async with gateway(tmp_path, SCRIPT, config=config()) as hand:
        await limit_engine(hand, 1)
        names = [f"s{number}" for number in range(20)]
        lost = [name for name in names if hand.bus.partition_of(Topic.SESSIONS, name) == 0]
        kept = next(name for name in names if hand.bus.partition_of(Topic.SESSIONS, name) != 0)
        capability, ending = await hand.start(lost[0]), await hand.start(lost[1])
        slow = asyncio.create_task(hand.ask(await hand.start(kept), SLOWLY))
        await sampling(hand, 1)
        held = asyncio.create_task(post(hand, capability, b"{}"))
        await asyncio.sleep(0.1)
        await hand.bus.producer("gateway-0")
        await hand.exit(lost[1])  # it finds out when it writes the end
        async with asyncio.timeout(60):
            while await leaving(hand, ending) != 503:  # noqa: ASYNC110 - the partition is let go without a word
                await asyncio.sleep(0.01)
        assert not held.done()
        assert (await slow).status == 200
        assert await held == (503, "1")


async def test_request_that_needs_no_engine_takes_no_place(tmp_path: Path) -> None:
    """A retry that joins its twin, and prompts that are only counted."""
    async with gateway(tmp_path, SCRIPT, config=config(admission_timeout_seconds=0.2)) as hand:
        await limit_engine(hand, 2)
        first, second = await hand.start("s1", quirks=Quirks(retry_header="x-retry")), await hand.start("s2")
        slow = [asyncio.create_task(hand.ask(first, SLOWLY))]
        await sampling(hand, 1)
        slow.append(asyncio.create_task(hand.ask(first, SLOWLY, passed_on={"x-retry": "1"})))
        for _ in range(2):
            body = {"model": "m", "messages": HELLO}
            *_, counted = [frame async for frame in hand.frames(second, body, path="/v1/messages/count_tokens")]
            assert isinstance(counted, Answer)
            assert counted.status == 200
        assert (await hand.ask(second, HELLO)).status == 200
        assert {answer.status for answer in await asyncio.gather(*slow)} == {200}


@asynccontextmanager
async def crowded(folder: Path, *, quirks: Quirks | None = None, **limits: float) -> AsyncIterator[tuple[Served, asyncio.Task[Answer]]]:
    """A served session beside another one, which has the only place of the only engine."""
    relay = msgspec.structs.replace(LIMITS, **limits)
    async with served(folder, SCRIPT, config=config(admission_timeout_seconds=0.3), limits=relay, quirks=quirks) as session:
        await limit_engine(session.hand, 1)
        other = asyncio.create_task(session.hand.ask(await session.hand.start("s2"), SLOWLY))
        await sampling(session.hand, 1)
        yield session, other


async def ask(session: Served, text: str = "hi", **fields: Any) -> tuple[int, str | None, Any]:
    """Ask as a harness; return status, Retry-After and the body."""
    body = {"model": "policy", "messages": [{"role": "user", "content": text}], **fields}
    async with session.hand.http.post(
        f"{session.url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {NONCE}"}
    ) as answer:
        return answer.status, answer.headers.get("retry-after"), json.loads(await answer.read())


async def test_harness_of_a_call_that_is_not_admitted_hears_503_and_its_attempt_is_run_again(tmp_path: Path) -> None:
    """No prompt is recorded: that the last request had no answer for our reasons stands in HarnessExited."""
    async with crowded(tmp_path, admission_seconds=0.5) as (session, other):
        spent, began = session.clock.seconds(), time.monotonic()
        status, retry_after, body = await ask(session)
        assert (status, retry_after, body["error"]["type"]) == (503, "5", "overloaded_error")
        assert session.report.unanswered is CallFailure.OVERLOADED
        assert session.clock.seconds() - spent < time.monotonic() - began - 0.4  # what the machine takes besides is the agent's
        assert (await other).status == 200
        await session.hand.exit("s1", code=1, unanswered=session.report.unanswered)
        assert (await session.hand.until("s1", AttemptEnded)).termination_reason is TerminationReason.INFRASTRUCTURE
        assert not any(isinstance(event, CallFailed) for event in await session.hand.log("s1"))


async def test_retry_of_a_vote_that_was_not_admitted_has_an_answer_of_its_own(tmp_path: Path) -> None:
    """The log knows nothing of it; an equal request was answered meanwhile, and that answer is another voter's."""
    async with crowded(tmp_path, quirks=Quirks(retry_header="x-retry"), admission_seconds=0.5) as (session, other):
        assert (await ask(session))[0] == 503
        assert (await other).status == 200
        for retries, sampled in (("0", 1), ("1", 2), ("1", 2)):
            body = {"model": "policy", "messages": HELLO}
            headers = {"authorization": f"Bearer {NONCE}", "x-retry": retries}
            async with session.hand.http.post(f"{session.url}/v1/chat/completions", json=body, headers=headers) as answer:
                assert answer.status == 200
            assert sum(isinstance(event, CallOpened) for event in await session.hand.log("s1")) == sampled
        await session.sealed()


async def test_wait_for_an_engine_is_not_the_agents_time(tmp_path: Path) -> None:
    async with crowded(tmp_path, admission_seconds=5.0) as (session, other):
        spent, began = session.clock.seconds(), time.monotonic()
        assert (await ask(session))[0] == 200
        took = time.monotonic() - began
        assert took > 0.5
        assert session.clock.seconds() - spent < took - 0.3
        assert (await other).status == 200


@pytest.mark.parametrize(("stream", "mode"), [(False, "keep"), (True, "keep"), (True, "abort")])
async def test_pause_of_the_engine_is_not_the_agents_time_and_is_told_while_it_lasts(tmp_path: Path, *, stream: bool, mode: str) -> None:
    """New weights are loaded in mid-answer, which stays or is ended: the agent's clock stands, so that a long update ends nobody."""
    async with served(tmp_path, SCRIPT) as session:
        control = VllmWeights(session.hand.engine.url)
        asking = asyncio.create_task(
            session.hand.http.post(
                f"{session.url}/v1/chat/completions",
                json={"model": "policy", "messages": SLOWLY, "stream": stream},
                headers={"authorization": f"Bearer {NONCE}"},
            )
        )
        await sampling(session.hand, 1)
        async with session.hand.http.post(f"{session.hand.engine.url}/pause?mode={mode}") as paused:
            assert paused.status == 200
        began, spent = time.monotonic(), session.clock.seconds()
        await asyncio.sleep(1.5)
        assert session.clock.seconds() - spent < 0.8
        await asyncio.sleep(1.0)
        await control.resume()
        await control.aclose()
        async with await asking as answer:
            assert answer.status == 200
            await answer.read()
        assert time.monotonic() - began > 2.5
        assert session.clock.seconds() - spent < 1.5
        await session.sealed()


async def test_try_in_vain_is_not_the_agents_time(tmp_path: Path) -> None:
    """The engine breaks off after eight tokens; the answer comes from the next try."""
    async with served(tmp_path, SCRIPT) as session:
        spent, began = session.clock.seconds(), time.monotonic()
        status, _, body = await ask(session, "in vain")
        assert (status, body["choices"][0]["message"]["content"]) == (200, "Hello.")
        assert time.monotonic() - began > 0.8
        assert session.clock.seconds() - spent < 0.5


async def test_relay_that_comes_late_is_not_told_of_waits_before_it_came(tmp_path: Path) -> None:
    """It joins a call whose engine was paused; from then on it hears of the pause as the first one does."""
    async with gateway(tmp_path, SCRIPT) as hand:
        capability, request_id = await hand.start("s1"), new_request_id()

        async def waits() -> list[float]:
            body = {"model": "m", "messages": SLOWLY}
            return [frame.seconds async for frame in hand.frames(capability, body, request_id) if isinstance(frame, Waiting)]

        control = VllmWeights(hand.engine.url)
        first = asyncio.create_task(waits())
        await sampling(hand, 1)
        await control.pause()
        await asyncio.sleep(1.8)
        second = asyncio.create_task(waits())
        await asyncio.sleep(0.2)
        await control.resume()
        await control.aclose()
        assert sum(await first) > 1.5
        assert sum(await second) < 1.0
        await hand.exit("s1")
        await hand.until("s1", SessionSealed)
        assert (await rebuilt(hand, "s1")).inconsistencies == ()
