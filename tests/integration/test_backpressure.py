"""Lag on a real broker, from a reader that falls behind to the scheduler that holds new sessions back."""

import asyncio
import json
import secrets
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from tests.support import builders
from tests.support.commands import evener
from tests.support.other_services import OtherServices
from tests.support.scheduler import scheduler
from tests.support.waiting import until

from evener.blobs.open import open_blobs
from evener.bus.kafka import open_kafka
from evener.bus.port import Bus, Outgoing, Reader
from evener.proto.sessions import SessionDispatched
from evener.proto.spec import GraderSpec, HarnessSpec
from evener.proto.state import Stage
from evener.proto.tasks import TaskOptions
from evener.proto.topics import TOPICS, Topic
from evener.service.lag import LagWatch
from evener.service.telemetry import metrics
from evener.tasks.directory import bundled, find
from evener.tasks.pack import pack

BEHIND = 40
LIMIT = 20
BEAT_SECONDS = 0.1


class StoppedEvaluator:
    """Reads built trajectories as the evaluator does, works on none before it is told to, and beats."""

    def __init__(self, bus: Bus, others: OtherServices) -> None:
        self.goes_on = asyncio.Event()
        self._bus = bus
        self._others = others
        self._lag = LagWatch(bus, metrics(CollectorRegistry()), look_seconds=BEAT_SECONDS)

    async def run(self) -> None:
        """Read, measure and beat until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for partition in range(self._bus.partitions_of(Topic.BUILT)):
                tasks.create_task(self._read(partition))
            tasks.create_task(self._lag.watch())
            tasks.create_task(self._beat())

    async def _read(self, partition: int) -> None:
        async for _ in self._bus.follow(Topic.BUILT, partition, 0, Reader("evaluator")):
            await self.goes_on.wait()

    async def _beat(self) -> None:
        while True:
            beat = builders.heartbeat("evaluator", "evaluator", at=time.time(), lag=self._lag.of("evaluator"))
            await self._others.events.send(Topic.FLEET, "evaluator", beat)
            await asyncio.sleep(BEAT_SECONDS)


async def lag_command(url: str, state: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[dict[str, Any]], str]:
    """Run `evener lag`; return its lines and what it says on stderr."""
    monkeypatch.setenv("EVENER_URL", url)
    ended = await evener("lag", "--state", str(state))
    assert ended.code == 0, ended.errors
    return [json.loads(line) for line in ended.out.splitlines()], ended.errors


@pytest.mark.kafka
async def test_new_sessions_wait_while_the_evaluators_are_behind(
    kafka_servers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason is in the task, in the fleet and in a series; sessions start once the evaluators have caught up to half the limit."""
    registry = CollectorRegistry()
    options = TaskOptions(samples=2, harness=HarnessSpec(name="script"), grader=GraderSpec(name="answer", options={"expected": "Paris"}))
    packed = pack(find(bundled())[0])
    async with open_kafka(kafka_servers, TOPICS, 2, f"t{secrets.token_hex(4)}.") as bus:
        others = OtherServices(bus, open_blobs(str(tmp_path / "blobs")))
        producer = await bus.producer("built")
        for number in range(BEHIND):
            await producer.commit([Outgoing(topic=Topic.BUILT, key=f"t.{number}", value=b"v")])
        evaluator = StoppedEvaluator(bus, others)
        running = asyncio.ensure_future(evaluator.run())
        async with scheduler(bus, tmp_path, registry=registry, hold_behind_sessions=LIMIT) as client, others.beating():
            fleet = await until(lambda: client.patiently(client.fleet), lambda fleet: fleet.held)
            assert fleet.held.startswith("evaluator is ")
            assert fleet.held.endswith(f" sessions behind, over its limit of {LIMIT}")
            (seen,) = [instance for instance in fleet.instances if instance.service == "evaluator"]
            assert (seen.lag[0].topic, seen.lag[0].partitions) == (Topic.BUILT, 2)
            assert seen.lag[0].records >= BEHIND
            assert registry.get_sample_value("evener_admission_held", {"behind": "evaluator"}) == 1

            lines, told = await lag_command(client.url, tmp_path, monkeypatch)
            (read,) = [line for line in lines if line["instance_id"] == "evaluator"]
            assert (read["topic"], read["partitions"]) == (Topic.BUILT, 2)
            assert read["records"] >= read["worst_records"] > 0
            assert "new sessions wait: evaluator is " in told

            await client.put_blob(packed.data)
            await client.submit(options, task=packed.ref, task_id="t")
            view = (await client.task("t")).task
            assert (view.stages, view.held) == ({Stage.QUEUED: 2}, (await client.fleet()).held)
            assert await others.read(Topic.DISPATCH, SessionDispatched) == []

            evaluator.goes_on.set()
            assert len(await others.dispatched(2)) == 2
            assert (await client.task("t")).task.held == ""
            assert registry.get_sample_value("evener_admission_held", {"behind": "evaluator"}) == 0
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
