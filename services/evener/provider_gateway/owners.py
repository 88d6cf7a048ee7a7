"""Which partitions this gateway owns, and where the others are."""

from evener.bus.port import Bus
from evener.proto.codec import BadRecord
from evener.proto.fleet import Heartbeat
from evener.proto.topics import Topic
from evener.provider_gateway.owner import Owner
from evener.service.events import EventLog
from evener.service.telemetry import Metrics

SERVICE = "provider_gateway"


class Owners:
    """Owned partitions by number."""

    def __init__(self, bus: Bus, events: EventLog, metrics: Metrics, instance_id: str) -> None:
        self._bus = bus
        self._metrics = metrics
        self._events = events
        self._instance_id = instance_id
        self._owned: dict[int, Owner] = {}

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions that are served."""
        return tuple(sorted(self._owned))

    def of(self, partition: int) -> Owner | None:
        """Return the owner of a partition, if it is here."""
        return self._owned.get(partition)

    async def serve(self, partition: int) -> None:
        """Take a partition over and serve it until cancelled. Raises Fenced when another instance took it."""
        owner = await Owner.take_over(self._bus, self._events, self._metrics, partition)
        self._owned[partition] = owner
        self._metrics.partitions_owned.set(len(self._owned))
        try:
            await owner.serve()
        finally:
            del self._owned[partition]
            self._metrics.partitions_owned.set(len(self._owned))
            await owner.aclose()

    async def address_of(self, partition: int) -> str | None:
        """Return the base URL of another gateway that lists the partition in `fleet`. None: none does."""
        for record in (await self._bus.last_values(Topic.FLEET, 0)).values():
            try:
                event = await self._events.event(record)
            except BadRecord:
                continue
            if (
                isinstance(event, Heartbeat)
                and event.service == SERVICE
                and event.instance_id != self._instance_id
                and partition in event.partitions
            ):
                return event.address
        return None
