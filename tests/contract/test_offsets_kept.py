"""A broker that forgets offsets after a minute, as real ones do after a week."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.waiting import until

from evener.bus.kafka import open_kafka
from evener.bus.port import GroupOffset, Outgoing, Position, Reader
from evener.proto.topics import TOPICS, Topic
from evener.service.renewal import renew_offsets

KAFKA = Path(__file__).parents[2] / "scripts" / "kafka.py"
SETTINGS = "offsets.retention.minutes=1\noffsets.retention.check.interval.ms=1000\n"
GROUP = "reconstructor"
SECONDS = 300.0


@pytest.fixture
def forgetful_broker(kafka_servers: str, tmp_path: Path) -> Iterator[str]:
    """The address of a broker that remembers offsets for a minute."""
    assert kafka_servers  # the tools for a broker are here
    settings = tmp_path / "forgetful.properties"
    settings.write_text(SETTINGS)
    command = [sys.executable, str(KAFKA), "run", "--with-parent", "--settings", str(settings)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as script:
        assert script.stdout
        try:
            yield script.stdout.readline().strip()
        finally:
            script.terminate()


@pytest.mark.kafka
@pytest.mark.slow
async def test_offset_of_an_idle_partition_is_kept_while_its_reader_runs(forgetful_broker: str) -> None:
    """It would read everything again: graded again, and of forgotten groups delivered again. What nobody reads is forgotten."""
    async with open_kafka(forgetful_broker, {Topic.SESSIONS: TOPICS[Topic.SESSIONS]}, 2) as bus:
        for partition in (0, 1):
            (at,) = await bus.send([Outgoing(topic=Topic.SESSIONS, key="k", value=b"v", partition=partition)])
            await bus.commit_offsets([GroupOffset(GROUP, Position(Topic.SESSIONS, partition, at.offset + 1))])

        async def read() -> None:
            async for _ in bus.follow(Topic.SESSIONS, 0, 1, Reader("reconstructor", groups=(GROUP,))):
                pass

        tasks = [asyncio.ensure_future(read()), asyncio.ensure_future(renew_offsets(bus, every_seconds=2.0))]
        forgotten = await until(lambda: bus.committed(GROUP, Topic.SESSIONS, 1), lambda offset: offset is None, seconds=SECONDS)
        assert forgotten is None
        assert await bus.committed(GROUP, Topic.SESSIONS, 0) == 1
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
