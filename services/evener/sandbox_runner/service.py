"""The sandbox-runner: wires sandboxes, relay and log together, takes dispatches, and keeps its sessions."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp
import structlog

from evener.blobs.waited import Waited
from evener.bus.port import Record
from evener.proto.codec import BadRecord
from evener.proto.fleet import Heartbeat, Running
from evener.proto.sessions import SessionCancelled, SessionDispatched
from evener.proto.topics import Topic
from evener.sandbox_runner.bundles import Bundles
from evener.sandbox_runner.config import Config
from evener.sandbox_runner.core import Ending, Held, Me
from evener.sandbox_runner.owners import Owners
from evener.sandbox_runner.recordings import Recordings
from evener.sandbox_runner.relay_client import GatewayClient
from evener.sandbox_runner.sessions import Session
from evener.sandbox_runner.site import Site
from evener.sandboxes.local import open_local
from evener.service.events import EventLog
from evener.service.parts import Parts, Service
from evener.service.telemetry import metrics

NAME: Final = "sandbox_runner"

log = structlog.get_logger()


class Runner:
    """Takes what is dispatched to it from `start` on, and runs up to `capacity` sessions at a time."""

    def __init__(self, site: Site, parts: Parts, owners: Owners, start: int) -> None:
        self._site = site
        self._parts = parts
        self._owners = owners
        self._start = start
        self._held = Held()
        self._me = Me(runner_id=site.runner_id, boot_id=parts.boot_id)
        self._places = asyncio.Semaphore(site.config.capacity)
        self._sessions: dict[Running, tuple[Session, asyncio.Task[None]]] = {}
        self._stopping = False

    async def run(self) -> None:
        """Serve until cancelled; what still runs then is ended."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._owners.follow(self._parts.bus))
                tasks.create_task(self._follow())
        finally:
            running = [task for _, task in self._sessions.values()]
            for task in running:
                task.cancel()
            await asyncio.shield(asyncio.gather(*running, return_exceptions=True))

    async def drain(self) -> None:
        """Take nothing new, end what runs, and wait until that is reported."""
        self._stopping = True
        for session, _ in self._sessions.values():
            session.end(Ending.STOPPED)
        await asyncio.gather(*(task for _, task in self._sessions.values()), return_exceptions=True)

    def heartbeat(self) -> Heartbeat:
        """Return what `fleet` is told. No list of harnesses: an unknown one is refused with its reason, not left waiting."""
        return Heartbeat(
            instance_id=self._site.runner_id,
            service=NAME,
            address=self._parts.address,
            boot_id=self._parts.boot_id,
            capacity=self._site.config.capacity if self._parts.store_usable() else 0,
            running=self._held.running,
            stopping=self._stopping,
            at=time.time(),
        )

    def ready(self) -> dict[str, bool]:
        """Return whether dispatches are taken."""
        return {"taking": not self._stopping and self._parts.store_usable()}

    async def _follow(self) -> None:
        async for batch in self._parts.bus.follow(Topic.DISPATCH, 0, self._start):
            for record in batch:
                if record.key == self._site.runner_id:
                    await self._take(record)

    async def _take(self, record: Record) -> None:
        try:
            event = await self._site.events.event(record)
        except BadRecord as bad:
            await self._site.events.dead_letter(NAME, record, str(bad))
            return
        match event:
            case SessionDispatched() if not self._stopping and self._held.take(event, self._me):
                self._begin(event, record.timestamp_ms / 1000)
            case SessionCancelled():
                self._end_all(event.session_id)
            case _:
                pass

    def _begin(self, event: SessionDispatched, recorded_at: float) -> None:
        for lower in self._held.superseded(event):
            self._sessions[lower][0].end(Ending.STOPPED)
        attempt, session = Running(session_id=event.session_id, attempt=event.attempt), Session(event, recorded_at, self._site)
        task = asyncio.create_task(self._run(session, attempt), name=f"session {event.session_id}")
        self._sessions[attempt] = (session, task)

    def _end_all(self, session_id: str) -> None:
        for attempt, (session, _) in self._sessions.items():
            if attempt.session_id == session_id:
                session.end(Ending.CANCELLED)

    async def _run(self, session: Session, attempt: Running) -> None:
        """Run one session in its place. What it could not report itself its lease will."""
        try:
            async with self._places:
                await session.run()
        except Exception:  # the one place where a session's failure is caught
            log.exception("session_failed", session_id=attempt.session_id, attempt=attempt.attempt)
        finally:
            self._held.release(attempt)
            del self._sessions[attempt]


@asynccontextmanager
async def open_service(config: Config, parts: Parts) -> AsyncIterator[Service]:
    """Kill what a dead runner left, then yield the runner."""
    async with AsyncExitStack() as stack:
        start = await parts.bus.end(Topic.DISPATCH, 0)
        sandboxes = await stack.enter_async_context(open_local(Path(config.state) / "sandboxes" / parts.instance_id))
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        owners, recordings = Owners(), Recordings(parts.secrets)
        blobs = Waited(parts.blobs)
        site = Site(
            config=config,
            runner_id=f"{parts.instance_id}-{NAME}",
            events=EventLog(parts.bus, blobs),
            blobs=blobs,
            secrets=parts.secrets,
            sandboxes=sandboxes,
            bundles=Bundles(Path(config.harness_cache)),
            client=GatewayClient(http, owners),
            recordings=recordings,
            metrics=metrics(parts.registry),
        )
        runner = Runner(site, parts, owners, start)
        yield Service(
            name=NAME,
            routes=recordings.routes(),
            run=runner.run,
            ready=runner.ready,
            heartbeat=runner.heartbeat,
            drain=runner.drain,
        )
