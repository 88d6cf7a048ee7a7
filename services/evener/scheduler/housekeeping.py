"""Deletes runs that are old enough, and what deleted runs leave: their blobs, and at last the memory of their ids."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import structlog
from msgspec import Struct

from evener.blobs.port import Blobs
from evener.bus.port import Bus
from evener.proto.errors import EvenerError
from evener.proto.state import DeletedTask, TaskState
from evener.proto.topics import Topic
from evener.runtime.backoff import Backoff
from evener.scheduler.config import Config
from evener.scheduler.core import is_open
from evener.scheduler.sweep import Sweeper

DAY_SECONDS: Final = 86_400.0
LONGEST_SWEEP_PAUSE_SECONDS: Final = 60.0
"""The longest pause between two looks."""
SWEEP_PAUSES: Final = Backoff(60.0, 6 * 3600.0)
"""The pauses after a sweep that left blobs behind: each reads the whole log."""
SPARE: Final = 1.25
"""Whole segments of a log are deleted, so that records may stay for a quarter longer than their retention."""

log = structlog.get_logger()


class Chores(Struct, frozen=True, kw_only=True):
    """The changes that the writer has to commit."""

    old_runs: tuple[str, ...] = ()
    """Runs to delete, unless a task was added."""
    swept: tuple[str, ...] = ()
    """Deleted tasks whose blobs are removed."""
    forgotten: tuple[str, ...] = ()
    """Deleted tasks of which the log holds nothing any more."""


class Housekeeper:
    """Looks at the tasks of the active scheduler from time to time."""

    def __init__(
        self,
        config: Config,
        bus: Bus,
        blobs: Blobs,
        *,
        tell: Callable[[Chores], Awaitable[None]],
        tasks: Mapping[str, TaskState],
        deleted: Mapping[str, DeletedTask],
    ) -> None:
        """`tasks` and `deleted` are the writer's own, as they change."""
        self._config = config
        self._bus = bus
        self._sweeper = Sweeper(bus, blobs)
        self._tell = tell
        self._tasks = tasks
        self._deleted = deleted
        self._tries = 0
        self._next_sweep_at = 0.0

    async def run(self) -> None:
        """Work for ever, also after outages of the log and the store."""
        while True:
            await asyncio.sleep(max(self._config.tick_seconds, min(LONGEST_SWEEP_PAUSE_SECONDS, self._config.blob_rest_seconds)))
            try:
                await self._look(time.time())
            except EvenerError as away:
                log.warning("housekeeping_failed", error=str(away))

    async def _look(self, now: float) -> None:
        chores = Chores(old_runs=self._old_runs(now), swept=await self._swept(now), forgotten=await self._forgotten(now))
        if chores != Chores():
            await self._tell(chores)

    def _old_runs(self, now: float) -> tuple[str, ...]:
        """Return the runs whose last task ended too long ago."""
        days = self._config.run_retention_days
        if days is None:
            return ()
        ended_at: dict[str, float] = {}
        for task in self._tasks.values():
            at = now if task.ended_at is None or is_open(task) else task.ended_at
            run_id = task.submitted.options.run_id
            ended_at[run_id] = max(at, ended_at.get(run_id, 0.0))
        return tuple(run_id for run_id, at in ended_at.items() if now - at > days * DAY_SECONDS)

    async def _swept(self, now: float) -> tuple[str, ...]:
        """Remove blobs that have rested; return the tasks of which none is left."""
        rest = self._config.blob_rest_seconds
        due = [task.task_id for task in self._deleted.values() if not task.swept and now - task.deleted_at >= rest]
        if not due or time.monotonic() < self._next_sweep_at:
            return ()
        found = await self._sweeper.sweep(frozenset(due), frozenset(self._deleted), unused_seconds=rest)
        log.info("blobs_swept", tasks=len(due), removed=found.removed, shared=found.shared, waiting=found.waiting)
        self._tries = self._tries + 1 if found.waiting else 0
        if found.waiting:
            self._next_sweep_at = time.monotonic() + SWEEP_PAUSES.seconds(self._tries)
            return ()
        return tuple(due)

    async def _forgotten(self, now: float) -> tuple[str, ...]:
        """Return the deleted tasks whose records are older than any that the log keeps. A log that was never trimmed keeps all."""
        kept = self._config.days.log * DAY_SECONDS * SPARE
        old = tuple(task.task_id for task in self._deleted.values() if task.swept and now - task.deleted_at > kept + DAY_SECONDS)
        return old if kept and old and await self._bus.beginning(Topic.TASKS, 0) > 0 else ()
