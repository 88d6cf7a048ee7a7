"""Runs one task for every partition that the consumer group assigns to this instance."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from evener.bus.port import Bus, Fenced, Membership
from evener.proto.topics import Topic
from evener.runtime.change import Change
from evener.runtime.tasks import Tasks

FENCED_SECONDS: Final = 3.0
"""Longer than a heartbeat of the group, so that an instance that was replaced learns of it before it takes a partition again."""

log = structlog.get_logger()

Serve = Callable[[int], Awaitable[None]]


async def resumed_at(bus: Bus, group: str, topic: Topic, partition: int) -> int:
    """Return the offset from which a group reads a partition on: what it has committed, or where a trimmed or new log begins."""
    return max(await bus.committed(group, topic, partition) or 0, await bus.beginning(topic, partition))


async def own_partitions(bus: Bus, group: str, topic: str, name: str, serve: Serve, *, fenced_seconds: float = FENCED_SECONDS) -> None:
    """Join the group under a name and run `serve(partition)` for every assigned partition, until cancelled.

    The task of a partition that is assigned elsewhere is cancelled. A `serve` that raises Fenced is started again after a pause, if the
    partition is still assigned. Any other exception of a `serve` ends them all and is raised.
    """
    async with bus.join(group, topic, name) as membership, Tasks() as tasks:
        owned = Owned(serve, tasks, fenced_seconds=fenced_seconds)
        while True:
            owned.assign(await membership.changed(), membership)


class Owned:
    """The tasks of the partitions that a group assigns to this instance."""

    def __init__(
        self,
        serve: Serve,
        tasks: asyncio.TaskGroup,
        *,
        change: Change | None = None,
        hands_over: bool = False,
        fenced_seconds: float = FENCED_SECONDS,
    ) -> None:
        """`change`: what notes every assignment.

        `hands_over`: a `serve` whose partition is assigned elsewhere is not cancelled: it hands the partition over, and returns.
        """
        self.assigned: frozenset[int] = frozenset()
        self.change = change or Change()
        self._serve = serve
        self._group = tasks
        self._hands_over = hands_over
        self._fenced_seconds = fenced_seconds
        self._membership: Membership | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}

    @property
    def joined(self) -> bool:
        """Whether the group has made an assignment to this instance, which may be empty."""
        return self._membership is not None

    def assign(self, partitions: frozenset[int], membership: Membership | None) -> None:
        """Start tasks for new partitions and end those of partitions that are gone. `membership` None: this instance has left the group."""
        self.assigned, self._membership = partitions, membership
        self.change.note()
        for partition, task in list(self._tasks.items()):
            if partition not in partitions and not self._hands_over:
                task.cancel()
            if task.done() or (partition not in partitions and not self._hands_over):
                del self._tasks[partition]
        for partition in sorted(partitions - self._tasks.keys()):
            self._tasks[partition] = self._group.create_task(self._serve_while_assigned(partition), name=f"partition-{partition}")

    async def _serve_while_assigned(self, partition: int) -> None:
        while partition in self.assigned:
            try:
                await self._serve(partition)
            except Fenced:
                log.warning("fenced", partition=partition)
            else:
                continue
            await asyncio.sleep(self._fenced_seconds)
            if self._membership is None or self._membership.dividing:
                return  # `assign` starts this again, if the partition stays here
