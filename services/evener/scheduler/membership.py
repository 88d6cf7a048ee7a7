"""Decides by membership which scheduler of a name is active. The others stand by, and tell their clients its address.

All schedulers of a name are members of one group on the topic `tasks`, which has one partition: whoever is assigned it takes over. On the
embedded bus the one member is always active.
"""

import asyncio
from typing import Final

import structlog

from evener.proto.fleet import Heartbeat
from evener.proto.topics import Topic
from evener.runtime.tasks import Tasks
from evener.scheduler.active import ActiveScheduler
from evener.scheduler.config import Config
from evener.scheduler.writer import NotServing, TaskWriter
from evener.service.context import ServiceContext
from evener.service.partitions import own_partitions

SERVICE: Final = "scheduler"

log = structlog.get_logger()


class NotActive(NotServing):
    """Ask the active scheduler. If none is named, one is about to take over: try again in a moment."""

    def __init__(self, what: str, address: str | None) -> None:
        super().__init__(what)
        self.address = address
        """The base URL of the active scheduler. None: none is known."""


class Scheduler:
    """One of the schedulers of a name."""

    def __init__(self, config: Config, context: ServiceContext) -> None:
        self._config = config
        self._context = context
        self._active = ActiveScheduler(config.name)
        self._writer: TaskWriter | None = None
        """The writer of the active scheduler. None: this one stands by."""
        self._member: asyncio.Task[None] | None = None
        self._stopping = False
        self.heartbeat_due = asyncio.Event()
        """Set when this scheduler becomes active, and when it no longer is."""

    @property
    def writer(self) -> TaskWriter:
        """The writer, if this scheduler is the active one and has taken over. Raises NotActive otherwise."""
        if self._writer is not None and self._writer.serving:
            return self._writer
        address = None if self._active.address == self._context.address else self._active.address
        if self._writer is not None:
            msg = "this scheduler is about to take over, or to stop"
        elif address is None:
            msg = "this scheduler is not active, and no other is known to be"
        else:
            msg = f"this scheduler stands by; the active one is at {address}"
        raise NotActive(msg, address)

    async def run(self) -> None:
        """Be a member of the group, and active whenever it assigns the tasks to this one, until cancelled."""
        async with Tasks() as tasks:
            tasks.create_task(self._active.follow(self._context.fleet))
            if not self._stopping:
                group, name = f"scheduler-{self._config.name}", self._context.instance_id
                joining = own_partitions(self._context.bus, group, Topic.TASKS, name, self._serve)
                self._member = tasks.create_task(joining, name="scheduler-member")

    async def drain(self) -> None:
        """Refuse all requests and leave the group, so that a standby takes over at once."""
        self._stopping = True
        if self._writer is not None:
            self._writer.stop()
        if self._member is not None:
            self._member.cancel()
            await asyncio.wait({self._member})

    def ready(self) -> dict[str, bool]:
        """Return the conditions: of the active scheduler that it has taken over, of a standby that it is one."""
        if self._writer is not None:
            return {"active": self._writer.serving}
        return {"standby": self._member is not None and not self._stopping}

    def warnings(self) -> list[str]:
        """Return why no new session starts, if something holds them."""
        reason = "" if self._writer is None else self._writer.backpressure.reason
        return [reason] if reason else []

    def heartbeat(self) -> Heartbeat:
        """Return the heartbeat for `fleet`."""
        writer = self._writer if self._writer is not None and self._writer.serving else None
        told = {} if writer is None else {"active_epoch": writer.epoch, "queued": writer.queued()}
        return self._context.heartbeat(SERVICE, stopping=self._stopping, scheduler=self._config.name, **told)

    async def _serve(self, _partition: int) -> None:
        """Take over, and be active until the group takes the tasks away, or another scheduler fences this one."""
        writer = self._writer = TaskWriter(self._config, self._context, took_over=self.heartbeat_due.set)
        try:
            await writer.run()
        finally:
            writer.stop()
            if self._writer is writer:  # and not one that took over while this one ended
                self._writer = None
            self.heartbeat_due.set()
            log.info("scheduler_stands_by", name=self._config.name)
