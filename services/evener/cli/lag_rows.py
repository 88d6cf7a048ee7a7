"""The rows of `evener lag`."""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from evener.client.views import FleetView

LAG_COLUMNS: Final = ("instance", "topic", "partitions", "behind", "furthest")


class ReadTopic(Struct, frozen=True, kw_only=True):
    """A topic that an instance reads."""

    instance_id: str
    topic: str
    partitions: int
    records: int
    """The records that it has not worked on."""
    worst_partition: int
    worst_records: int


def rows(fleet: FleetView) -> Iterator[ReadTopic]:
    """Yield what the living instances read."""
    for instance in fleet.instances:
        for lag in instance.lag if instance.alive else ():
            yield ReadTopic(
                instance_id=instance.instance_id,
                topic=lag.topic,
                partitions=lag.partitions,
                records=lag.records,
                worst_partition=lag.worst_partition,
                worst_records=lag.worst_records,
            )


def cells(one: ReadTopic) -> tuple[str, ...]:
    """Return a row of the table."""
    worst = f"{one.worst_records} in partition {one.worst_partition}" if one.worst_records else ""
    return one.instance_id, one.topic, str(one.partitions), str(one.records), worst
