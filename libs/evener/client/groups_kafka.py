"""Groups directly from Kafka: reads `trajectories.merged` (committed records, from given offsets) and `tasks`, for the end of a run."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager

from msgspec import structs

from evener.blobs.open import open_blobs
from evener.blobs.waited import Waited
from evener.bus.kafka import open_kafka
from evener.bus.kafka_security import KafkaSecurity
from evener.bus.open import KAFKA_URL
from evener.bus.port import Bus, Record
from evener.client.run_end import TaskEnd, is_over
from evener.proto.codec import BadRecord
from evener.proto.delivered import Delivered
from evener.proto.errors import ConfigError
from evener.proto.tasks import TaskEnded, TaskSubmitted
from evener.proto.topics import TOPICS, Topic
from evener.service.delivered import check_position, delivered
from evener.service.events import EventLog


async def delivered_by_kafka(
    url: str, security: KafkaSecurity, blobs: str, position: Mapping[int, int], *, follow: bool
) -> AsyncGenerator[Delivered, None]:
    """Yield groups from a position; wait while the blob store is away. Raises ConfigError, BusError, PositionUnknown."""
    async with _bus(url, security, blobs, Topic.MERGED) as bus:
        await check_position(bus, position)
        events = EventLog(bus, Waited(open_blobs(blobs)))
        async with aclosing(delivered(bus, events, position, follow=follow)) as frames:
            async for frame in frames:
                yield frame


async def until_over_by_kafka(url: str, security: KafkaSecurity, blobs: str, run_id: str) -> list[TaskEnd]:
    """Wait until all tasks of a run in `tasks` have ended, and while the blob store is away; return them. Raises ConfigError, BusError."""
    async with _bus(url, security, blobs, Topic.TASKS) as bus:
        tasks = _Tasks(EventLog(bus, Waited(open_blobs(blobs))), run_id)
        at = await bus.beginning(Topic.TASKS, 0)
        async for record in bus.read(Topic.TASKS, 0, at):
            await tasks.fold(record)
            at = record.offset + 1
        if not is_over(tasks.known.values()):
            async for batch in bus.follow(Topic.TASKS, 0, at):
                for record in batch:
                    await tasks.fold(record)
                if is_over(tasks.known.values()):
                    break
        return list(tasks.known.values())


class _Tasks:
    """The tasks of a run, folded from the records of `tasks`."""

    def __init__(self, events: EventLog, run_id: str) -> None:
        self.known: dict[str, TaskEnd] = {}
        self._events = events
        self._run_id = run_id

    async def fold(self, record: Record) -> None:
        """Fold in a record. A record that cannot be read is ignored."""
        try:
            event = await self._events.light(record)
        except BadRecord:
            return
        match event:
            case TaskSubmitted() if event.options.run_id == self._run_id:
                self.known[event.task_id] = TaskEnd(event.task_id, event.options.purpose, None, "")
            case TaskEnded() if event.task_id in self.known:
                self.known[event.task_id] = structs.replace(self.known[event.task_id], outcome=event.outcome, reason=event.reason)
            case _:
                pass


@asynccontextmanager
async def _bus(url: str, security: KafkaSecurity, blobs: str, topic: Topic) -> AsyncIterator[Bus]:
    """Open one topic of a deployment's bus. Raises ConfigError, BusError."""
    named = KAFKA_URL.fullmatch(url)
    if named is None or not blobs:
        msg = f"bus {url!r} with blobs {blobs!r}: write kafka://HOST:PORT[,HOST:PORT][?prefix=NAME], and where the deployment's blobs are"
        raise ConfigError(msg)
    servers, prefix = named["servers"], named["prefix"] or ""
    async with open_kafka(servers, {topic: TOPICS[topic]}, None, prefix, days=None, security=security) as bus:
        yield bus
