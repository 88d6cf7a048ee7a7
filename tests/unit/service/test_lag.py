"""The lag of a process: series of its own partitions, and a summary for its heartbeats."""

import asyncio
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from tests.support.service_context import open_parts
from tests.support.waiting import until

from evener.bus.port import Outgoing, Reader
from evener.proto.fleet import TopicLag
from evener.proto.topics import Topic
from evener.service.lag import LagWatch
from evener.service.telemetry import metrics

READER = Reader("reconstructor")


async def test_lag_is_reported_by_topic_and_disappears_with_its_reader(tmp_path: Path) -> None:
    """An instance has series of its own partitions only: what another took over is not shown twice."""
    async with open_parts(tmp_path) as context:
        lag, gate = LagWatch(context.bus, metrics(context.registry)), asyncio.Event()

        async def work(partition: int) -> None:
            async for _ in context.bus.follow(Topic.SESSIONS, partition, 0, READER):
                await gate.wait()

        await context.bus.send([Outgoing(topic=Topic.SESSIONS, key="k", value=b"v", partition=number) for number in (0, 1, 1)])
        working = [asyncio.create_task(work(partition)) for partition in (0, 1)]
        await lag_of(lag, TopicLag(topic="sessions", records=3, partitions=2, worst_partition=1, worst_records=2))
        assert lag.of("evaluator") == ()
        assert lag_series(context.registry) == {"0": 1.0, "1": 2.0}

        gate.set()
        await lag_of(lag, TopicLag(topic="sessions", records=0, partitions=2, worst_partition=0, worst_records=0))
        assert lag_series(context.registry) == {"0": 0.0, "1": 0.0}

        working.pop().cancel()
        await lag_of(lag, TopicLag(topic="sessions", records=0, partitions=1, worst_partition=0, worst_records=0))
        assert lag_series(context.registry) == {"0": 0.0}
        working.pop().cancel()


async def lag_of(lag: LagWatch, wanted: TopicLag) -> None:
    """Measure until the lag is as wanted."""

    async def measured() -> tuple[TopicLag, ...]:
        await lag.look()
        return lag.of("reconstructor")

    found = await until(measured, lambda told: told and (told[0].records, told[0].partitions) == (wanted.records, wanted.partitions))
    if wanted.records:
        assert found == (wanted,)


def lag_series(registry: CollectorRegistry) -> dict[str, float]:
    assert generate_latest(registry)
    samples = [sample for metric in registry.collect() for sample in metric.samples if sample.name == "evener_lag_records"]
    assert {(sample.labels["reader"], sample.labels["topic"]) for sample in samples} == {("reconstructor", "sessions")}
    return {sample.labels["partition"]: sample.value for sample in samples}
