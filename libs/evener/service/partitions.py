"""Runs one task for every partition that the consumer group assigns to this instance."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from evener.bus.port import Bus, Fenced, Membership
from evener.proto.topics import Topic
from evener.runtime.tasks import Tasks

FENCED_SECONDS: Final = 3.0
"""Longer than a heartbeat of the group, so that an instance that was replaced learns of it before it takes a partition again."""

log = structlog.get_logger()

Serve = Callable[[int], Awaitable[None]]


async def resumed_at(bus: Bus, group: str, topic: Topic, partition: int) -> int:
    """Return the offset from which a group reads a partition on: what it has committed, or where a trimmed or new log begins."""
    return max(await bus.committed(group, topic, partition) or 0, await bus.beginning(topic, partition))


async def own_partitions(bus: Bus, group: str, topic: str, serve: Serve, *, keep: bool, fenced_seconds: float = FENCED_SECONDS) -> None:
    """Join the group and run `serve(partition)` for every assigned partition, until cancelled.

    `keep`: a partition that the group takes away is served until its writer is fenced; otherwise its task is cancelled. A `serve` that
    raises Fenced is started again after a pause, if the partition is still assigned. Any other exception of a `serve` ends them all and is
    raised.
    """
    async with bus.join(group, topic) as membership:
        owned = Owned(membership, serve, keep=keep, fenced_seconds=fenced_seconds)
        async with Tasks() as tasks:
            while True:
                owned.assign(await membership.changed(), tasks)


class Owned:
    """The tasks of one member's partitions."""

    def __init__(self, membership: Membership, serve: Serve, *, keep: bool, fenced_seconds: float) -> None:
        self._membership = membership
        self._serve = serve
        self._keep = keep
        self._fenced_seconds = fenced_seconds
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def assign(self, partitions: frozenset[int], tasks: asyncio.TaskGroup) -> None:
        """Start tasks for new partitions, end those of partitions that are gone (unless kept), and leave the others alone."""
        for partition, task in list(self._tasks.items()):
            if task.done() or (partition not in partitions and not self._keep):
                task.cancel()
                del self._tasks[partition]
        for partition in sorted(partitions - self._tasks.keys()):
            self._tasks[partition] = tasks.create_task(self._serve_until_lost(partition), name=f"partition-{partition}")

    async def _serve_until_lost(self, partition: int) -> None:
        while True:
            try:
                return await self._serve(partition)
            except Fenced:
                log.warning("fenced", partition=partition)
            await asyncio.sleep(self._fenced_seconds)
            if partition not in self._membership.partitions:  # none while the group divides anew: `assign` starts this again
                return None
