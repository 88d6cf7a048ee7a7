"""A runner that is at fault, or stops, beside a good one: real runners, a real scheduler, and a hand that plays the sessions' owner."""

import asyncio
import importlib
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs
from tests.support.other_services import OtherServices
from tests.support.scheduler import scheduler
from tests.support.service_context import context_on
from tests.support.waiting import eventually, until

from evener.blobs.open import open_blobs
from evener.bus.open import open_bus
from evener.bus.port import Bus
from evener.client.client import Client
from evener.proto.reasons import ExitCause, TerminationReason
from evener.proto.sessions import HarnessExited, SessionDispatched
from evener.proto.spec import Budgets, GraderSpec, HarnessSpec
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
async def runner(bus: Bus, folder: Path, name: str, blobs: str, *, stop_seconds: float = 10.0) -> AsyncIterator[Supervisor]:
    """Run a runner on a blob store of its own choice; yield its keeper."""
    context = context_on(bus, folder, blobs=open_blobs(blobs), instance_id=name, boot_id=f"boot-of-{name}")
    config = Config(state=str(folder), trust_local=True, capacity=CAPACITY, stop_seconds=stop_seconds)
    wanted = Wanted(name="sandbox_runner", config=config, open=importlib.import_module("evener.sandbox_runner.service").open_service)
    keeper = Supervisor(wanted, context, lambda: None, heartbeat_seconds=0.2)
    running = asyncio.ensure_future(keeper.run())
    try:
        yield keeper
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def play_owner(bus: Bus, events: EventLog, others: OtherServices, partition: int) -> None:
    """Judge the exits in a partition, as its owner does."""
    async for batch in bus.follow(Topic.SESSIONS, partition, 0):
        for record in batch:
            event = await events.event(record)
            if isinstance(event, HarnessExited):
                await judge(others, event)


@asynccontextmanager
async def owners(bus: Bus, others: OtherServices, blobs: str) -> AsyncIterator[None]:
    """Play the owner of every partition."""
    async with asyncio.TaskGroup() as tasks:
        playing = [tasks.create_task(play_owner(bus, EventLog(bus, open_blobs(blobs)), others, number)) for number in range(2)]
        yield
        for one in playing:
            one.cancel()


async def judge(others: OtherServices, exited: HarnessExited) -> None:
    """Seal a session, or have it run again."""
    if exited.cause is ExitCause.EXITED:
        await others.sealed(exited.session_id, attempt=exited.attempt)
        return
    (dispatched,) = [
        event
        for event in await others.read(Topic.DISPATCH, SessionDispatched)
        if (event.session_id, event.attempt) == (exited.session_id, exited.attempt)
    ]
    await others.attempt_ended(dispatched, TerminationReason(exited.cause))


async def submit(client: Client, *program: str, **given: Any) -> None:
    """Submit a task whose agents are a program."""
    await client.put_blob(PACKED.data)
    harness = HarnessSpec(name="command", options={"argv": json.dumps(program)})
    options = TaskOptions(harness=harness, grader=GraderSpec(name="none"), **given)
    await client.submit(options, task=PACKED.ref, task_id="t")


async def test_runner_without_the_blobs_draws_a_few_sessions_and_all_of_them_run_elsewhere(bus: Bus, tmp_path: Path) -> None:
    """Always free, it drew 72 of 80 dispatches once, and used up the attempts of most sessions."""
    blobs, registry = str(tmp_path / "blobs"), CollectorRegistry()
    others = OtherServices(bus, open_blobs(blobs))
    async with AsyncExitStack() as stack:
        logs = stack.enter_context(capture_logs())
        await stack.enter_async_context(runner(bus, tmp_path, "bad", str(tmp_path / "other-blobs")))
        await stack.enter_async_context(runner(bus, tmp_path, "good", blobs))
        client = await stack.enter_async_context(
            scheduler(bus, tmp_path, registry=registry, quarantine_losses=LOSSES, quarantine_seconds=3600.0, lease_seconds=60.0)
        )
        await stack.enter_async_context(owners(bus, others, blobs))
        await until(client.fleet, lambda fleet: {one.instance_id for one in fleet.instances if one.alive} >= set(RUNNERS))
        await submit(client, "true", samples=SAMPLES)
        async with asyncio.timeout(SECONDS):
            detail = await until(lambda: client.task("t"), lambda detail: detail.task.stages == {Stage.SEALED: SAMPLES})
        shown = {one.instance_id: one.quarantined_seconds for one in (await client.fleet()).instances}
        measured = registry.get_sample_value("evener_runners_quarantined")

    assert detail.task.ends == {TerminationReason.FINISHED: SAMPLES}
    dispatched = await others.read(Topic.DISPATCH, SessionDispatched)
    lost = [event for event in dispatched if event.runner_id == "bad-sandbox_runner"]
    assert LOSSES <= len(lost) < LOSSES + CAPACITY, "those that it held when the third was lost"
    assert {event.attempt for event in lost} == {1}, "no session comes back to where it was lost"
    assert (shown["bad-sandbox_runner"] or 0) > 0
    assert shown["good-sandbox_runner"] is None
    assert measured == 1
    assert [entry["runner_id"] for entry in logs if entry["event"] == "runner_quarantined"] == ["bad-sandbox_runner"]


async def test_session_of_a_runner_that_stops_runs_at_another_and_has_lost_no_attempt(bus: Bus, tmp_path: Path) -> None:
    """It has one. What runs too long for the stop is handed back; the runner that stops gets nothing more."""
    blobs, begun = str(tmp_path / "blobs"), tmp_path / "begun"
    others = OtherServices(bus, open_blobs(blobs))
    async with AsyncExitStack() as stack:
        keeper = await stack.enter_async_context(runner(bus, tmp_path, "first", blobs, stop_seconds=0.5))
        client = await stack.enter_async_context(scheduler(bus, tmp_path, lease_seconds=60.0))
        await stack.enter_async_context(owners(bus, others, blobs))
        await submit(client, "sh", "-c", f"[ -e {begun} ] || {{ touch {begun}; sleep 1000; }}", budgets=Budgets(attempts=1))
        await eventually(begun.exists)
        await stack.enter_async_context(runner(bus, tmp_path, "second", blobs))
        await until(client.fleet, lambda fleet: sum(one.service == "sandbox_runner" and one.alive for one in fleet.instances) == 2)
        await keeper.drain()
        detail = await until(lambda: client.task("t"), lambda detail: detail.task.stages == {Stage.SEALED: 1})

    assert detail.task.ends == {TerminationReason.FINISHED: 1}
    dispatched = await others.read(Topic.DISPATCH, SessionDispatched)
    assert {event.attempt: event.runner_id for event in dispatched} == {1: "first-sandbox_runner", 2: "second-sandbox_runner"}
