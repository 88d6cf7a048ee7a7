"""A gateway whose blob store is away: calls whose records are in it, and calls of others."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.gateway import POLICY, Hand, gateway
from tests.support.outage import Outage
from tests.support.waiting import until

from evener.blobs.open import open_blobs
from evener.engines.scripted import Rule, Script
from evener.engines.scripted.script import Wait
from evener.proto.blobs import BlobRef
from evener.proto.ids import new_request_id
from evener.proto.relay import Answer, Waiting
from evener.proto.sessions import CallClosed, CallFailed, CallOpened, SessionSealed
from evener.proto.topics import Topic
from evener.provider_gateway.config import Config

SCRIPT = Script(rules=(Rule(match="at the gate", say="one two three", wait=(Wait(before=2),)),), default=Rule(say="Hello."))
CONTEXT = 20_000
LARGE = " international" * 16_000
"""Too large for a record."""


@pytest.fixture
def store(tmp_path: Path) -> Outage:
    return Outage(open_blobs(str(tmp_path / "blobs")))


@pytest.fixture
async def hand(tmp_path: Path, store: Outage) -> AsyncIterator[Hand]:
    async with gateway(tmp_path, SCRIPT, context=CONTEXT, blobs=store) as opened:
        yield opened


def beside(hand: Hand, session_id: str) -> str:
    """Return another session's id in the same partition."""
    names = (f"other-{number}" for number in range(100))
    partition = hand.bus.partition_of(Topic.SESSIONS, session_id)
    return next(name for name in names if hand.bus.partition_of(Topic.SESSIONS, name) == partition)


async def dead_letters(hand: Hand) -> int:
    return await hand.bus.end(Topic.DEAD_LETTERS, 0)


async def test_the_tail_does_not_fetch_what_its_owner_wrote(hand: Hand, store: Outage) -> None:
    """It has folded it in already; a new session's first call would wait behind each large call of the others."""
    store.silent = True
    await hand.say(await hand.start("s1"), [{"role": "user", "content": LARGE}])
    opened = next(event for event in await hand.log("s1") if isinstance(event, CallOpened))
    assert isinstance(opened.prompt_delta_ids, BlobRef) or isinstance(opened.messages, BlobRef)

    await hand.say(await hand.start(beside(hand, "s1")), [{"role": "user", "content": "hi"}])
    assert store.refused == 0


async def test_the_tail_does_not_wait_for_the_aborts_of_a_superseded_attempt(hand: Hand, store: Outage) -> None:
    """They are large, and cannot be written now: others are served, and they are written later."""
    capability = await hand.start("s1")
    asking = asyncio.ensure_future(hand.ask(capability, [{"role": "user", "content": LARGE + " at the gate"}]))
    await hand.engine.waiting()
    store.away = True
    second = await hand.start("s1", attempt=2)
    other = await hand.start(beside(hand, "s1"))

    assert await hand.say(other, [{"role": "user", "content": "hi"}])
    assert await hand.say(second, [{"role": "user", "content": "hi"}])
    assert not [event for event in await hand.log("s1") if isinstance(event, CallClosed | CallFailed) and event.attempt == 1]

    await store.met.wait()
    store.away = False
    await until(lambda: hand.log("s1"), lambda log: any(isinstance(event, CallClosed | CallFailed) and event.attempt == 1 for event in log))
    assert (await asking).status != 200
    assert await dead_letters(hand) == 0


async def test_call_and_seal_wait_for_a_store_that_is_away(hand: Hand, store: Outage) -> None:
    """The answer leaves when the store is back, sampled once; so does the seal, which knows the call."""
    capability = await hand.start("s1")
    store.away = True
    asking = asyncio.ensure_future(hand.say(capability, [{"role": "user", "content": LARGE}]))
    await store.met.wait()
    assert not await hand.log("s1") or not any(isinstance(event, CallOpened | CallClosed) for event in await hand.log("s1"))
    store.away = False
    assert (await asking)["content"] == "Hello."
    assert len(hand.engine.ledger) == 1

    store.away = True
    await hand.exit("s1")
    seal = await hand.until("s1", SessionSealed)
    assert (seal.calls, seal.sampled_tokens) == (1, len(hand.engine.ledger[0].sampled_ids))


async def test_what_an_outage_takes_is_not_the_agents_time(hand: Hand, store: Outage) -> None:
    """The relay learns of the wait as it passes; otherwise the agent's clock would end a harness that waits for Evener."""
    capability = await hand.start("s1")
    store.away = True
    began, waited, last = time.monotonic(), 0.0, None
    async for frame in hand.frames(capability, {"model": "m", "messages": [{"role": "user", "content": LARGE}]}):
        last = frame
        if isinstance(frame, Waiting):
            waited += frame.seconds
            store.away = waited < 1.0

    assert isinstance(last, Answer)
    assert last.status == 200
    assert 1.0 <= waited <= time.monotonic() - began


async def test_take_over_waits_for_what_it_must_read(tmp_path: Path, store: Outage) -> None:
    """A record that cannot be read now is no bad one: the call is answered from it, and not sampled once more."""
    request_id, messages = new_request_id(), [{"role": "user", "content": LARGE}]
    async with gateway(tmp_path, SCRIPT, context=CONTEXT, blobs=store) as first:
        capability = await first.start("s1")
        answer = await first.ask(capability, messages, request_id)

    store.silent = True

    async def give_back() -> None:
        await store.met.wait()
        store.silent = False

    giving = asyncio.ensure_future(give_back())
    async with gateway(tmp_path, SCRIPT, context=CONTEXT, blobs=store) as second:
        again = await second.ask(capability, messages, request_id)
        await giving
        assert again.body == answer.body
        assert [type(event) for event in await second.log("s1")][1:] == [CallOpened, CallClosed]
        assert await dead_letters(second) == 0


async def test_a_harness_is_told_when_the_store_stays_away(tmp_path: Path, store: Outage) -> None:
    """After the time that it may be kept waiting, once: the call is not sampled again and again meanwhile."""

    async with gateway(
        tmp_path, SCRIPT, context=CONTEXT, blobs=store, config=Config(policies=(POLICY,), transparent_retry_seconds=0.5)
    ) as hand:
        capability = await hand.start("s1")
        store.away = True
        answer = await hand.ask(capability, [{"role": "user", "content": LARGE}])
        assert answer.status == 503
        assert b"cannot be written" in answer.body
        assert store.refused > 1
        assert len(hand.engine.ledger) == 1
