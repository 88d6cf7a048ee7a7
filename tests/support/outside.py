"""A scheduler over real HTTP on the embedded bus, and a hand that plays runners, owners and the bridge."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry
from tests.support.builders import started
from tests.support.service_context import QUICK

from evener.blobs.open import open_blobs
from evener.blobs.port import Blobs
from evener.bus.port import Bus
from evener.client.client import Client
from evener.proto.codec import decode
from evener.proto.fleet import Heartbeat, Running
from evener.proto.ids import new_start_id
from evener.proto.reasons import TerminationReason
from evener.proto.sessions import AttemptEnded, SessionDispatched, SessionSealed, SessionStarted
from evener.proto.spec import Purpose
from evener.proto.topics import Topic
from evener.proto.trajectories import Accounting, GroupFailed, GroupMerged, Member
from evener.scheduler.config import Config
from evener.scheduler.service import open_service
from evener.service.auth import load_secrets
from evener.service.context import ServiceContext
from evener.service.events import EventLog
from evener.service.listener import Mounts, address_of, bind, listen

SECONDS = 60.0
"""What a test waits for anything."""

EventT = TypeVar("EventT")


@asynccontextmanager
async def scheduler(
    bus: Bus, folder: Path, *, registry: CollectorRegistry | None = None, again_seconds: float = 1.0, **given: Any
) -> AsyncIterator[Client]:
    """Run a scheduler that ends as abruptly as a task can; yield a client of it."""
    config = Config(state=str(folder), bus="unused", tick_seconds=0.05, **given)
    context = ServiceContext(
        bus=bus,
        blobs=open_blobs(str(folder / "blobs")),
        secrets=load_secrets(folder),
        registry=registry or CollectorRegistry(),
        instance_id="test",
        boot_id="boot",
        address="http://unused",
        blob_timings=QUICK,
    )
    listening = bind(config)
    mounts = Mounts()
    async with open_service(config, context) as service, listen(mounts, listening):
        mounts.replace(service.routes)
        running = asyncio.ensure_future(service.run())
        try:
            async with Client(address_of(config, listening), context.secrets.operator_token, again_seconds=again_seconds) as client:
                await eventually(lambda: all(service.ready().values()) or running.done())
                yield client
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110 - a flag of somebody else
            await asyncio.sleep(0.01)


async def until(asked: Callable[[], Awaitable[EventT]], holds: Callable[[EventT], bool]) -> EventT:
    """Ask until the answer is as wanted, and return it."""
    async with asyncio.timeout(SECONDS):
        while not holds(answer := await asked()):  # noqa: ASYNC110 - the log and HTTP are asked
            await asyncio.sleep(0.01)
    return answer


def closed_port() -> int:
    """Return a port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
    return port


class Outside:
    """Everything that is not the scheduler, as it sees it: records in topics."""

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

    async def beat(self, runner_id: str = "runner", *, capacity: int = 8, running: Iterable[SessionDispatched] = ()) -> None:
        """Send one heartbeat of a runner that holds these."""
        held = tuple(Running(session_id=event.session_id, attempt=event.attempt) for event in running)
        heartbeat = Heartbeat(
            instance_id=runner_id,
            service="sandbox_runner",
            boot_id="b",
            capacity=capacity,
            running=held,
            address="http://runner",
            at=time.time(),
        )
        await self.events.send(Topic.FLEET, runner_id, heartbeat)

    @asynccontextmanager
    async def beating(
        self, runner_id: str = "runner", *, capacity: int = 8, running: Iterable[SessionDispatched] = ()
    ) -> AsyncIterator[None]:
        """Keep a runner alive inside this block."""
        kept = tuple(running)

        async def beat() -> None:
            while True:
                await self.beat(runner_id, capacity=capacity, running=kept)
                await asyncio.sleep(0.2)

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
        await self._tell(event.session_id, started(event.session_id, event.spec, attempt=event.attempt, at=time.time(), **given))

    async def attempt_ended(self, event: SessionDispatched, end: TerminationReason = TerminationReason.INFRASTRUCTURE) -> None:
        """End an attempt that is to be run again, as its owner does."""
        ended = AttemptEnded(session_id=event.session_id, attempt=event.attempt, termination_reason=end, ended_at=time.time())
        await self._tell(event.session_id, ended)

    async def sealed(
        self, session_id: str, end: TerminationReason = TerminationReason.FINISHED, *, attempt: int = 1, detail: str = ""
    ) -> None:
        """Seal a session, as its owner does."""
        seal = SessionSealed(
            session_id=session_id,
            attempt=attempt,
            termination_reason=end,
            detail=detail,
            rows_digest="0" * 64,
            calls=1,
            sampled_tokens=10,
            sealed_at=time.time(),
        )
        await self._tell(session_id, seal)

    async def group_ended(self, task_id: str, size: int, *, purpose: Purpose = Purpose.TRAIN, reason: str | None = None) -> None:
        """End a group, as the bridge does: merged, or failed for a reason."""
        members = tuple(
            Member(session_id=f"{task_id}.{index}", attempt=1, termination_reason=TerminationReason.FINISHED, reward=float(index))
            for index in range(size)
        )
        common: dict[str, Any] = {
            "group_id": task_id,
            "task_id": task_id,
            "run_id": "default",
            "purpose": purpose,
            "policy": "policy",
            "size": size,
            "members": members,
            "accounting": Accounting(),
        }
        event = GroupMerged(**common, merged_at=0) if reason is None else GroupFailed(**common, reason=reason, failed_at=0)
        topic = Topic.MERGED if purpose is Purpose.TRAIN else Topic.KEPT
        await self.events.send(topic, task_id, event, group_id=task_id)

    async def _tell(self, session_id: str, event: SessionStarted | AttemptEnded | SessionSealed) -> None:
        await self.events.send(Topic.SESSIONS, session_id, event, session_id=session_id)
