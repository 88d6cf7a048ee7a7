"""A gateway's hold on a partition, on the embedded bus."""

from pathlib import Path

import pytest
from tests.support.service_context import open_parts

from evener.bus.port import Fenced
from evener.proto.topics import Topic
from evener.provider_gateway.partition import GROUP, Partition
from evener.provider_gateway.writer import PartitionWriter
from evener.service.events import EventLog
from evener.service.telemetry import metrics


async def test_hold_that_was_lost_unnoticed_cannot_be_proven(tmp_path: Path) -> None:
    """Another gateway took the partition over and died before it said so; who has it assigned back must not serve it on."""
    async with open_parts(tmp_path) as context:
        events = EventLog(context.bus, context.blobs)
        producer = await context.bus.producer("gateway-0")
        partition = Partition(context.bus, events, 0, PartitionWriter(producer, events, metrics(context.registry)))
        await partition.take_over()
        await partition.prove()
        assert await context.bus.committed(GROUP, Topic.SESSIONS, 0) == 0

        await context.bus.producer("gateway-0")
        with pytest.raises(Fenced):
            await partition.prove()
        await partition.aclose()
