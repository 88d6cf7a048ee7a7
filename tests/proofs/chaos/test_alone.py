"""One part dies and the others live on: a harness, or the gateway's task."""

import asyncio
import contextlib
import os
import re
import signal
from pathlib import Path

import aiohttp
import msgspec
import pytest
from proofs.chaos.storm import PLANTED, Storm, storm
from proofs.chaos.work import Noted, Wanted, script
from tests.support.ports import closed_port
from tests.support.waiting import eventually

from evener.proto.arrays import inline
from evener.proto.reasons import TerminationReason
from evener.proto.sessions import AttemptEnded, CallClosed, CallOpened, HarnessExited
from evener.proto.trajectories import GroupMerged

ORPHAN_WORDS = "I am an orphan."
"""What an orphan of the harness double says."""
CRASHES = {
    "scheduler": "scheduler.dispatched",
    "sandbox_runner": "runner.started#3",
    "provider_gateway": "gateway.sealed",
    "reconstructor": "reconstructor.built",
    "evaluator": "evaluator.graded#2",
    "trainer_bridge": "bridge.merged#2",
}
"""Where each service's task is cancelled, once."""


async def noted(chaos: Storm, kind: str) -> Noted:
    """Wait for the first line of this kind in the harnesses' ledgers."""
    await eventually(lambda: any(one.kind == kind for one in chaos.work.noted()))
    return next(one for one in chaos.work.noted() if one.kind == kind)


async def sent_again(chaos: Storm) -> float:
    """Return how often relays lost their gateway, as the metrics say."""
    async with aiohttp.ClientSession() as http, http.get(f"{chaos.up.url}/metrics") as answer:
        found = re.search(r"^evener_relay_sent_again_total (\S+)$", await answer.text(), re.MULTILINE)
    assert found
    return float(found[1])


async def test_harness_killed_alone_is_graded_by_what_it_did_and_its_group_completes(tmp_path: Path) -> None:
    """Its process dies between two calls: no fault of ours, so the session ends with that, and is trained."""
    async with storm(tmp_path, [Wanted(task_id="t", samples=3, steps=3)], says=script(token_ms=30)) as chaos:
        submitting = asyncio.create_task(chaos.work.submit())
        await chaos.up.start()
        victim = (await noted(chaos, "answered")).pid
        os.kill(victim, signal.SIGKILL)
        await submitting
        await chaos.ended()
        await chaos.up.stop()
        log = await chaos.log()

        [(_, group)] = log.groups["t"]
        assert isinstance(group, GroupMerged)
        [killed] = [member for member in group.members if member.termination_reason is not TerminationReason.FINISHED]
        [exited] = log.of_kind(killed.session_id, HarnessExited)
        assert (killed.termination_reason, killed.attempt, exited.exit_code) == (TerminationReason.HARNESS_FAILED, 1, -signal.SIGKILL)
        assert (killed.excluded, killed.reward) == (None, 0.0)
        assert sorted(member.reward for member in group.members if member.reward is not None) == [0.0, 1.0, 1.0]
        assert await chaos.audit() == []


@pytest.mark.parametrize("flags", [(), ("--stream",)], ids=["whole", "streamed"])
async def test_gateway_cancelled_between_commit_and_answer_answers_from_the_record(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """Relay and harness live on. The harness asked once and was answered once; the engine sampled once."""
    async with storm(tmp_path, [Wanted(task_id="t", samples=1, steps=2, flags=flags)]) as chaos:
        submitting = asyncio.create_task(chaos.work.submit())
        await chaos.up.start("cancel@gateway.committed#2")
        await submitting
        await chaos.ended()
        again = await sent_again(chaos)
        await chaos.up.stop()
        log = await chaos.log()

        assert [one.kind for one in chaos.work.noted()] == ["began", *["asks", "answered"] * 3]
        assert [one.tried for one in chaos.work.noted() if one.kind == "answered"] == [1, 1, 1]
        assert len(chaos.engine.ledger) == 3
        assert len(log.of_kind("t.0", CallOpened)) == len(log.of_kind("t.0", CallClosed)) == 3
        assert again >= 1
        assert '"event": "service_crashed"' in chaos.up.log
        assert await chaos.audit() == []


async def test_gateway_cancelled_while_a_call_is_open_samples_it_again_and_the_harness_does_not_notice(tmp_path: Path) -> None:
    """What was lost was never answered; the second sample is another try of the same request."""
    async with storm(tmp_path, [Wanted(task_id="t", samples=1, steps=2)]) as chaos:
        submitting = asyncio.create_task(chaos.work.submit())
        await chaos.up.start("cancel@gateway.admitted#2")
        await submitting
        await chaos.ended()
        await chaos.up.stop()
        log = await chaos.log()

        assert [one.tried for one in chaos.work.noted() if one.kind == "answered"] == [1, 1, 1]
        assert log.of_kind("t.0", AttemptEnded) == []
        requests = [call.request_id for call in log.of_kind("t.0", CallOpened)]
        assert len(set(requests)) == 3
        assert await chaos.audit() == []


async def test_every_task_ends_although_each_service_crashes_alone(tmp_path: Path) -> None:
    """The process lives on, and starts each of its services again."""
    async with storm(tmp_path) as chaos:
        submitting = asyncio.create_task(chaos.work.submit())
        await chaos.up.start(",".join(f"cancel@{point}" for point in CRASHES.values()))
        await submitting
        await chaos.ended()
        await chaos.up.stop()

        crashed = {msgspec.json.decode(line)["service"] for line in chaos.up.log.splitlines() if '"service_crashed"' in line}
        assert crashed == set(CRASHES)
        assert await chaos.audit() == []


async def test_orphan_that_keeps_asking_at_a_reused_port_is_refused_and_leaves_no_record(tmp_path: Path) -> None:
    """It holds the key of an attempt that is gone, and meets the relays of others at its old address."""
    wanted = [Wanted(task_id="t", samples=2, steps=2, flags=("--leave-key",))]
    program = (PLANTED, "one relay port", str(closed_port()))
    async with storm(tmp_path, wanted, says=script(token_ms=30), program=program, sandbox_runner__capacity=1) as chaos:
        submitting = asyncio.create_task(chaos.work.submit())
        await chaos.up.start()
        process = await chaos.orphan(await noted(chaos, "keyed"), "t")
        orphan = await noted(chaos, "orphaned")
        try:
            await noted(chaos, "answered")
            await chaos.up.kill()
            await chaos.up.start()
            await submitting
            await chaos.ended()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        await chaos.up.stop()
        log = await chaos.log()

        met = [one for one in chaos.work.noted() if one.pid == orphan.pid and one.kind == "haunted"]
        assert {one.url for one in chaos.work.noted()} == {orphan.url}
        assert {one.status for one in met} == {0, 401}
        asked = [inline(call.messages).decode() for name in log.sessions for call in log.of_kind(name, CallOpened)]
        assert asked
        assert not any(ORPHAN_WORDS in messages for messages in asked)
        assert not any(ORPHAN_WORDS in prompt for prompt in chaos.prompts())
        assert await chaos.audit() == []
