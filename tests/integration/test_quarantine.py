"""A runner whose machine is at fault beside a good one: real runners, a real scheduler, and a hand that plays the sessions' owner."""

import asyncio
import importlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs
from tests.support.other_services import OtherServices
from tests.support.scheduler import scheduler
from tests.support.service_context import context_on
from tests.support.waiting import until

from evener.blobs.open import open_blobs
from evener.bus.open import open_bus
from evener.bus.port import Bus
from evener.client.client import Client
from evener.proto.reasons import ExitCause, TerminationReason
from evener.proto.sessions import HarnessExited, SessionDispatched
from evener.proto.spec import GraderSpec, HarnessSpec
from evener.proto.state import Stage
from evener.proto.tasks import TaskOptions
from evener.proto.topics import Topic
from evener.sandbox_runner.config import Config
from evener.service.events import EventLog
from evener.service.supervisor import Supervisor, Wanted
from evener.tasks.directory import bundled, find
from evener.tasks.pack import pack

SAMPLES: Final = 24
LOSSES: Final = 3
CAPACITY: Final = 2
SECONDS: Final = 120.0
"""What a test waits for anything."""
PACKED: Final = pack(find(bundled())[0])
RUNNERS: Final = ("bad-sandbox_runner", "good-sandbox_runner")


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[Bus]:
    async with open_bus(f"embedded:{tmp_path / 'bus'}", partitions=2) as opened:
        yield opened


@asynccontextmanager
async def runner(bus: Bus, folder: Path, name: str, blobs: str) -> AsyncIterator[None]:
    """Run a runner on a blob store of its own choice."""
    context = context_on(bus, folder, blobs=open_blobs(blobs), instance_id=name, boot_id=f"boot-of-{name}")
    config = Config(state=str(folder), trust_local=True, capacity=CAPACITY)
    wanted = Wanted(name="sandbox_runner", config=config, open=importlib.import_module("evener.sandbox_runner.service").open_service)
    running = asyncio.ensure_future(Supervisor(wanted, context, lambda: None, heartbeat_seconds=0.2).run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def play_owner(bus: Bus, events: EventLog, outside: OtherServices, partition: int) -> None:
    """Judge the exits in a partition, as its owner does."""
    async for batch in bus.follow(Topic.SESSIONS, partition, 0):
        for record in batch:
            event = await events.event(record)
            if isinstance(event, HarnessExited):
                await judge(outside, event)


async def judge(outside: OtherServices, exited: HarnessExited) -> None:
    """Seal a session, or have it run again."""
    if exited.cause is ExitCause.EXITED:
        await outside.sealed(exited.session_id, attempt=exited.attempt)
        return
    assert exited.cause is ExitCause.SANDBOX_LOST
    (dispatched,) = [
        event
        for event in await outside.read(Topic.DISPATCH, SessionDispatched)
        if (event.session_id, event.attempt) == (exited.session_id, exited.attempt)
    ]
    await outside.attempt_ended(dispatched, TerminationReason.SANDBOX_LOST)


async def submit(client: Client) -> None:
    """Submit a task whose agents do nothing."""
    await client.put_blob(PACKED.data)
    harness = HarnessSpec(name="command", options={"argv": '["true"]'})
    options = TaskOptions(samples=SAMPLES, harness=harness, grader=GraderSpec(name="none"))
    await client.submit(options, task=PACKED.ref, task_id="t")


async def test_runner_without_the_blobs_draws_a_few_sessions_and_all_of_them_run_elsewhere(bus: Bus, tmp_path: Path) -> None:
    """Always free, it drew 72 of 80 dispatches once, and used up the attempts of most sessions."""
    blobs, registry = str(tmp_path / "blobs"), CollectorRegistry()
    outside = OtherServices(bus, open_blobs(blobs))
    async with AsyncExitStack() as stack:
        logs = stack.enter_context(capture_logs())
        await stack.enter_async_context(runner(bus, tmp_path, "bad", str(tmp_path / "other-blobs")))
        await stack.enter_async_context(runner(bus, tmp_path, "good", blobs))
        client = await stack.enter_async_context(
            scheduler(bus, tmp_path, registry=registry, quarantine_losses=LOSSES, quarantine_seconds=3600.0, lease_seconds=60.0)
        )
        owners = [asyncio.create_task(play_owner(bus, EventLog(bus, open_blobs(blobs)), outside, number)) for number in range(2)]
        await until(client.fleet, lambda fleet: {one.instance_id for one in fleet.instances if one.alive} >= set(RUNNERS))
        await submit(client)
        async with asyncio.timeout(SECONDS):
            detail = await until(lambda: client.task("t"), lambda detail: detail.task.stages == {Stage.SEALED: SAMPLES})
        shown = {one.instance_id: one.quarantined_seconds for one in (await client.fleet()).instances}
        measured = registry.get_sample_value("evener_runners_quarantined")
        for owner in owners:
            owner.cancel()
        await asyncio.gather(*owners, return_exceptions=True)

    assert detail.task.ends == {TerminationReason.FINISHED: SAMPLES}
    dispatched = await outside.read(Topic.DISPATCH, SessionDispatched)
    lost = [event for event in dispatched if event.runner_id == "bad-sandbox_runner"]
    assert LOSSES <= len(lost) < LOSSES + CAPACITY, "those that it held when the third was lost"
    assert {event.attempt for event in lost} == {1}, "no session comes back to where it was lost"
    assert (shown["bad-sandbox_runner"] or 0) > 0
    assert shown["good-sandbox_runner"] is None
    assert measured == 1
    assert [entry["runner_id"] for entry in logs if entry["event"] == "runner_quarantined"] == ["bad-sandbox_runner"]
