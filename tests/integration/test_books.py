"""The books hold every token that an engine was seen to sample, those of failed tries included."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.integration.test_gateway import rebuilt
from tests.support.gateway import POLICY, Hand, gateway
from tests.support.held import Hold
from tests.support.loop import turns
from tests.support.outage import Outage
from tests.support.waiting import eventually

from evener.blobs.open import open_blobs
from evener.engines.scripted import Rule, Script, Wait
from evener.proto.ids import new_request_id
from evener.proto.reasons import CallFailure, ExclusionReason, ExitCause, TerminationReason
from evener.proto.sessions import AttemptEnded, CallFailed, SessionSealed
from evener.proto.spec import Streaming
from evener.provider_gateway.config import Config
from evener.runtime.faults import at_point_in_thread

EIGHT = "one two three four five six seven eight"
SCRIPT = Script(rules=(Rule(match="cut once", say=EIGHT, fail="cut", after=3, times=1),), default=Rule(say="Hello."))
HI = [{"role": "user", "content": "hi"}]
CUT = [{"role": "user", "content": "cut once"}]
LARGE = " international" * 16_000
"""Too large for a record."""


async def ledger_of(hand: Hand) -> int:
    """Tokens that the engine sampled, also for those who left."""
    await eventually(lambda: not hand.engine.sampling)
    return sum(len(entry.sampled_ids) for entry in hand.engine.ledger)


async def sealed(hand: Hand) -> tuple[Any, SessionSealed]:
    seal = await hand.until("s1", SessionSealed)
    return await rebuilt(hand, "s1"), seal


async def test_a_try_that_failed_half_way_is_in_the_books(tmp_path: Path) -> None:
    """Sampled = delivered + left out, by the engine's ledger: live, rebuilt, in the seal and in the metric."""
    async with gateway(tmp_path, SCRIPT) as hand:
        capability, request_id = await hand.start("s1"), new_request_id()
        assert (await hand.ask(capability, CUT, request_id)).body == b""
        assert (await hand.ask(capability, CUT, request_id)).status == 200
        assert (await hand.until("s1", CallFailed)).sampled_tokens == 3
        await hand.exit("s1")
        trajectory, seal = await sealed(hand)
        books = trajectory.accounting
        assert books.excluded == {ExclusionReason.FAILED_TRY: 3}
        assert books.sampled == seal.sampled_tokens == await ledger_of(hand) == books.delivered + 3
        assert [call.sampled_tokens for call in trajectory.calls] == [3, books.delivered]
        assert trajectory.inconsistencies == ()
        assert hand.context.registry.get_sample_value("evener_tokens_sampled_total", {"policy": "policy"}) == books.sampled


@pytest.mark.parametrize("answered", [True, False])
async def test_tries_whose_failure_the_log_did_not_take_are_written_when_it_does(tmp_path: Path, *, answered: bool) -> None:
    """The disk is full for three tries; then the call is answered, or its harness has gone."""
    async with gateway(tmp_path, SCRIPT) as hand:
        capability, request_id = await hand.start("s1"), new_request_id()
        with closing(sqlite3.connect(tmp_path / "bus" / "bus.sqlite", isolation_level=None)) as meddling:
            meddling.execute("CREATE TRIGGER full BEFORE INSERT ON record BEGIN SELECT RAISE(ABORT, 'disk full'); END")
            for _ in range(3):
                assert (await hand.ask(capability, HI, request_id)).body == b""
            meddling.execute("DROP TRIGGER full")
        if answered:
            assert (await hand.ask(capability, HI, request_id)).status == 200
        await hand.exit("s1", cause=ExitCause.EXITED if answered else ExitCause.CANCELLED)
        trajectory, seal = await sealed(hand)
        books = trajectory.accounting
        assert books.sampled == seal.sampled_tokens == await ledger_of(hand) > 0
        assert books.excluded[ExclusionReason.FAILED_TRY] == books.sampled - books.delivered
        assert (books.delivered > 0) is answered
        assert trajectory.inconsistencies == ()


async def test_a_failure_that_the_log_does_not_take_while_its_harness_leaves_is_in_the_books(tmp_path: Path, hold: Hold) -> None:
    """Its call is cancelled while its commit is under way, and then fails."""
    async with gateway(tmp_path, SCRIPT) as hand:
        capability, request_id = await hand.start("s1"), new_request_id()
        with closing(sqlite3.connect(tmp_path / "bus" / "bus.sqlite", isolation_level=None)) as meddling:
            meddling.execute("CREATE TRIGGER full BEFORE INSERT ON record BEGIN SELECT RAISE(ABORT, 'disk full'); END")
            commit = hold("gateway.commit")
            asking = asyncio.create_task(hand.ask(capability, CUT, request_id))
            await commit.reached()
            leaving = asyncio.create_task(hand.disconnect(capability, request_id))
            await turns()
            commit.let_go()
            await leaving
            assert (await asking).body == b""
            meddling.execute("DROP TRIGGER full")
        await hand.exit("s1", cause=ExitCause.CANCELLED)
        trajectory, seal = await sealed(hand)
        assert trajectory.accounting.sampled == seal.sampled_tokens == await ledger_of(hand) == 3


def fail() -> None:
    raise ZeroDivisionError


async def test_sampled_tokens_are_in_the_accounting_if_the_record_of_an_aborted_answer_fails(tmp_path: Path) -> None:
    """A bug met while the harness leaves is recorded and logged as any other."""
    async with gateway(tmp_path, SCRIPT) as hand:
        hand.engine.play(Script(default=Rule(say=EIGHT, wait=(Wait(before=3),))))
        capability, request_id = await hand.start("s1", streaming=Streaming.LIVE), new_request_id()
        asking = await hand.admitted(capability, HI, request_id, stream=True)
        await hand.at_the_gate()
        with at_point_in_thread("gateway.closing", fail), capture_logs() as logged:
            await hand.disconnect(capability, request_id)
        assert [entry["session_id"] for entry in logged if entry["event"] == "call_crashed"] == ["s1"]
        failed = await hand.until("s1", CallFailed)
        assert failed.reason is CallFailure.ENGINE_ERROR
        assert (await asking).failure is CallFailure.ENGINE_ERROR
        await hand.exit("s1", cause=ExitCause.CANCELLED)
        trajectory, seal = await sealed(hand)
        assert trajectory.accounting.sampled == seal.sampled_tokens == await ledger_of(hand) == failed.sampled_tokens > 0


@pytest.mark.parametrize("streaming", list(Streaming))
async def test_all_answers_of_a_failed_call_are_in_the_books(tmp_path: Path, streaming: Streaming) -> None:
    """Also in an attempt that is run again."""
    async with gateway(tmp_path, SCRIPT) as hand:
        hand.engine.play(Script(default=Rule(say=EIGHT, per_token_ms=5, fail="cut", after=3)))
        capability = await hand.start("s1", streaming=streaming)
        request_id = new_request_id()
        for _ in range(8):
            answer = await hand.ask(capability, CUT, request_id, n=2, stream=True)
        assert answer.body
        await hand.exit("s1", code=1)
        assert (await hand.until("s1", AttemptEnded)).termination_reason is TerminationReason.INFRASTRUCTURE
        hand.engine.play(SCRIPT)
        assert (await hand.ask(await hand.start("s1", attempt=2), HI)).status == 200
        await hand.exit("s1", attempt=2)
        trajectory, _ = await sealed(hand)
        failed = [event for event in await hand.log("s1") if isinstance(event, CallFailed)]
        assert {event.reason for event in failed} == {CallFailure.ENGINE_UNREACHABLE}
        books = trajectory.accounting
        assert 0 < books.excluded[ExclusionReason.FAILED_TRY] == sum(event.sampled_tokens for event in failed)
        assert books.sampled <= await ledger_of(hand)


async def test_harness_leaves_while_the_failure_of_its_call_waits_for_the_blob_store(tmp_path: Path) -> None:
    """Its record is too large for the log alone. It is written with the end, whose reason it is: ours, not the agent's."""
    store = Outage(open_blobs(str(tmp_path / "blobs")))
    config = Config(policies=(POLICY,), transparent_retry_seconds=0.5)  # so long the failure waits for the store by itself
    async with gateway(tmp_path, SCRIPT, config=config, context=20_000, blobs=store) as hand:
        capability, request_id = await hand.start("s1"), new_request_id()
        store.away = True
        asking = asyncio.ensure_future(hand.ask(capability, [{"role": "user", "content": LARGE + " cut once"}], request_id))
        await store.met.wait()
        await hand.disconnect(capability, request_id)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        store.away = False
        await hand.exit("s1", code=1)
        assert (await hand.until("s1", AttemptEnded)).termination_reason is TerminationReason.INFRASTRUCTURE
        (failed,) = [event for event in await hand.log("s1") if isinstance(event, CallFailed)]
        assert failed.reason is CallFailure.ENGINE_UNREACHABLE
        assert failed.sampled_tokens == await ledger_of(hand) == 3
