"""Plays, over the log, the services beside the one under test: engines that join, runners, owners of sessions, the bridge."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from tests.support import builders
from tests.support.waiting import until

from evener.blobs.port import Blobs
from evener.bus.port import Bus
from evener.proto.codec import AnyEvent, decode
from evener.proto.fleet import EngineLeft, RunnerLeases, Running
from evener.proto.ids import new_start_id
from evener.proto.reasons import TerminationReason
from evener.proto.sessions import SessionDispatched, SessionStarted
from evener.proto.spec import Purpose
from evener.proto.topics import Topic
from evener.service.auth import Capability
from evener.service.events import EventLog

BEAT_SECONDS = 0.2

EventT = TypeVar("EventT")


class OtherServices:
    """Writes what they write, and reads what the service under test wrote."""

    def __init__(self, bus: Bus, blobs: Blobs) -> None:
        self.bus = bus
        self.events = EventLog(bus, blobs)

    async def read(self, topic: Topic, kind: type[EventT]) -> list[EventT]:
        """Return all events of a kind in a topic."""
        found: list[EventT] = []
        for partition in range(self.bus.partitions_of(topic)):
            async for record in self.bus.read(topic, partition):
                event = decode(record.value or b"")
                if isinstance(event, kind):
                    found.append(event)
        return found

    async def dispatched(self, count: int) -> list[SessionDispatched]:
        """Wait for so many dispatches and return all there are."""
        return await until(lambda: self.read(Topic.DISPATCH, SessionDispatched), lambda found: len(found) >= count)

    async def join(self, engine_id: str, url: str, **changes: Any) -> None:
        """Let an engine of the policy join."""
        await self.events.send(Topic.FLEET, engine_id, builders.joined(url, engine_id, **changes))

    async def leave_fleet(self, engine_id: str) -> None:
        """Let an engine leave."""
        await self.events.send(Topic.FLEET, engine_id, EngineLeft(engine_id=engine_id, left_at=time.time()))

    async def beat(self, runner_id: str = "runner", *, capacity: int = 8, running: Iterable[SessionDispatched] = ()) -> None:
        """Send one heartbeat of a runner that holds these, and renew their leases."""
        held = tuple(Running(session_id=event.session_id, attempt=event.attempt) for event in running)
        given: dict[str, Any] = {"capacity": capacity, "address": "http://runner"}
        await self.events.send(Topic.FLEET, runner_id, builders.heartbeat("sandbox_runner", runner_id, at=time.time(), **given))
        await self.events.send(Topic.LEASES, runner_id, RunnerLeases(runner_id=runner_id, running=held, at=time.time()))

    @asynccontextmanager
    async def beating(
        self, runner_id: str = "runner", *, capacity: int = 8, running: Iterable[SessionDispatched] = ()
    ) -> AsyncIterator[None]:
        """Keep a runner alive inside this block."""
        kept = tuple(running)

        async def beat() -> None:
            while True:
                await self.beat(runner_id, capacity=capacity, running=kept)
                await asyncio.sleep(BEAT_SECONDS)

        task = asyncio.ensure_future(beat())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def started(self, event: SessionDispatched) -> None:
        """Start a dispatched attempt, as its runner does."""
        given: dict[str, Any] = {"start_id": new_start_id(), "runner_id": event.runner_id, "dispatched_at": event.dispatched_at}
        await self.write_start(builders.started(event.session_id, event.spec, attempt=event.attempt, at=time.time(), **given))

    async def write_start(self, event: SessionStarted, *, seconds: float = 600.0) -> Capability:
        """Write the start of an attempt, as its runner does; return what its relay holds for these seconds."""
        at = await self.events.send(Topic.SESSIONS, event.session_id, event, session_id=event.session_id)
        return Capability(
            session_id=event.session_id,
            attempt=event.attempt,
            start_id=event.start_id,
            partition=at.partition,
            offset=at.offset,
            expires_at=event.started_at + seconds,
        )

    async def exited(self, session_id: str, **of_exit: Any) -> None:
        """Say that the harness of an attempt is gone, as its runner does."""
        await self._tell(session_id, builders.exited(session_id, at=time.time(), **of_exit))

    async def attempt_ended(self, event: SessionDispatched, reason: TerminationReason = TerminationReason.INFRASTRUCTURE) -> None:
        """End an attempt that is to be run again, as its owner does."""
        await self._tell(event.session_id, builders.attempt_ended(event.session_id, reason, attempt=event.attempt, at=time.time()))

    async def sealed(self, session_id: str, reason: TerminationReason = TerminationReason.FINISHED, **of_seal: Any) -> None:
        """Seal a session, as its owner does."""
        fields = {"calls": 1, "sampled_tokens": 10, "at": time.time()} | of_seal
        await self._tell(session_id, builders.sealed(session_id, reason, **fields))

    async def group_ended(self, task_id: str, size: int, *, purpose: Purpose = Purpose.TRAIN, reason: str | None = None) -> None:
        """End a group, as the bridge does: merged, or failed for a reason."""
        event = builders.group_ended(task_id, [float(index) for index in range(size)], purpose=purpose, reason=reason)
        topic = Topic.MERGED if purpose is Purpose.TRAIN else Topic.KEPT
        await self.events.send(topic, task_id, event, group_id=task_id)

    async def _tell(self, session_id: str, event: AnyEvent) -> None:
        await self.events.send(Topic.SESSIONS, session_id, event, session_id=session_id)
