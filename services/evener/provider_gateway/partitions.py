"""The partitions that this gateway owns, and the addresses of the owners of all others."""

from msgspec import Struct, field

from evener.bus.port import Bus
from evener.proto.codec import BadRecord
from evener.proto.fleet import Heartbeat
from evener.proto.topics import Topic
from evener.provider_gateway.partition import Partition
from evener.provider_gateway.writer import PartitionWriter
from evener.service.events import EventLog
from evener.service.telemetry import Metrics

SERVICE = "provider_gateway"


class OwnedPartitions(Struct, frozen=True, eq=False):
    """The owned partitions by number."""

    bus: Bus
    events: EventLog
    metrics: Metrics
    instance_id: str
    _owned: dict[int, Partition] = field(default_factory=dict)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The partitions that are served."""
        return tuple(sorted(self._owned))

    def get(self, number: int) -> Partition | None:
        """Return a partition, if this gateway owns it."""
        return self._owned.get(number)

    async def serve(self, number: int) -> None:
        """Take a partition over and serve it until cancelled. Raises Fenced when another instance has taken it over."""
        producer = await self.bus.producer(f"gateway-{number}")  # which fences the earlier owner
        partition = Partition(self.bus, self.events, number, PartitionWriter(producer, self.events, self.metrics))
        try:
            await partition.take_over()
            self._owned[number] = partition
            self.metrics.partitions_owned.set(len(self._owned))
            await partition.serve()
        finally:
            self._owned.pop(number, None)
            self.metrics.partitions_owned.set(len(self._owned))
            await partition.aclose()
            await producer.aclose()

    async def address_of(self, partition: int) -> str | None:
        """Return the base URL of another gateway that lists the partition in `fleet`. None: there is none."""
        for record in (await self.bus.last_values(Topic.FLEET, 0)).values():
            try:
                event = await self.events.event(record)
            except BadRecord:
                continue
            if (
                isinstance(event, Heartbeat)
                and event.service == SERVICE
                and event.instance_id != self.instance_id
                and partition in event.partitions
            ):
                return event.address
        return None
