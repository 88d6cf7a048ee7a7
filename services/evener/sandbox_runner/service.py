"""The sandbox-runner: wires sandboxes, relay and log together, takes dispatches, and keeps its sessions."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import aiohttp
import structlog

from evener.bus.port import Position, Record
from evener.harnesses.registry import installed
from evener.proto.codec import BadRecord
from evener.proto.fleet import Heartbeat, RunnerLeases, Running
from evener.proto.reasons import ExitCause
from evener.proto.sandbox import SandboxOffer
from evener.proto.sessions import SessionCancelled, SessionDispatched
from evener.proto.topics import Topic
from evener.runtime.byte_budget import ByteBudget
from evener.runtime.retry import Dependency
from evener.runtime.tasks import Tasks
from evener.runtime.tls import client_context
from evener.sandbox_runner.bundles import Bundles
from evener.sandbox_runner.config import Config
from evener.sandbox_runner.context import RUNNER_TIMINGS, RunnerContext, RunnerTimings
from evener.sandbox_runner.core import HeldAttempts
from evener.sandbox_runner.gateway_client import GatewayClient
from evener.sandbox_runner.preparation import warm
from evener.sandbox_runner.queue_share import QueueShare
from evener.sandbox_runner.recordings import Recordings
from evener.sandbox_runner.sessions import AttemptRun
from evener.sandbox_runner.warm_pool import PoolLimits, WarmPool
from evener.sandboxes.registry import open_backends, troubles, usable
from evener.service.context import Service, ServiceContext
from evener.service.events import EventLog
from evener.service.owners import Owners
from evener.service.telemetry import metrics
from evener.service.tracing import context_of

SERVICE: Final = "sandbox_runner"
HAND_BACK_SECONDS: Final = 10.0
"""How much of the time for a stop is kept for handing back what still runs, but at most half of it."""

log = structlog.get_logger()


class Runner:
    """Takes the attempts dispatched to it from `start` on, in its partition of `dispatch`, and runs up to `capacity` sessions at a time."""

    def __init__(self, runner: RunnerContext, context: ServiceContext, owners: Owners, start: Position) -> None:
        self._runner = runner
        self._context = context
        self._owners = owners
        self._start = start
        self._held = HeldAttempts(runner.runner_id, context.boot_id)
        self._slots = asyncio.Semaphore(runner.config.capacity)
        self._sessions: dict[Running, tuple[AttemptRun, asyncio.Task[None]]] = {}
        self._stopping = False

    async def run(self) -> None:
        """Serve until cancelled, then end what still runs."""
        try:
            async with Tasks() as tasks:
                tasks.create_task(self._owners.follow(self._context.fleet))
                tasks.create_task(self._follow_queue())
                tasks.create_task(self._runner.pool.run(partial(warm, context=self._runner)))
                tasks.create_task(self._follow())
        finally:
            running = self._tasks()
            for task in running:
                task.cancel()
            await asyncio.shield(asyncio.gather(*running, return_exceptions=True))

    async def drain(self) -> None:
        """Take nothing new, let what runs end as long as there is time, then hand the rest back, and wait until that is reported.

        Where all services stop together nothing could end well, so everything is handed back at once.
        """
        self._stopping = True
        self._runner.pool.stop()
        stop_seconds = self._runner.config.stop_seconds
        if self._context.alone and (running := self._tasks()):
            log.info("waiting_for_sessions", sessions=len(running))
            await asyncio.wait(running, timeout=stop_seconds - min(HAND_BACK_SECONDS, stop_seconds / 2))
        for session, _ in self._sessions.values():
            session.end(ExitCause.STOPPED)
        while left := self._tasks():  # a dispatch that was on its way is handed back too
            await asyncio.wait(left)

    def heartbeat(self) -> Heartbeat:
        """Return the heartbeat for `fleet`. It names no harnesses: a runner refuses one that it lacks, with the reason."""
        taking = self._context.store_usable() and not self._stopping and usable(self._runner.sandboxes)["sandboxes"]
        capacity = self._runner.config.capacity if taking else 0
        config, backends = self._runner.config, tuple(self._runner.sandboxes)
        offer = SandboxOffer(backends=backends, default=config.sandbox or "", trusts_local=config.trust_local)
        return self._context.heartbeat(SERVICE, stopping=self._stopping, capacity=capacity, warm=self._runner.pool.ready(), sandboxes=offer)

    def leases(self) -> RunnerLeases:
        """Return the sessions that the runner holds, for `leases`."""
        return RunnerLeases(runner_id=self._runner.runner_id, running=self._held.running, at=time.time())

    def ready(self) -> dict[str, bool]:
        """Return whether dispatches are taken."""
        return {"taking": not self._stopping and self._context.store_usable()} | usable(self._runner.sandboxes)

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [task for _, task in self._sessions.values()]

    async def _follow_queue(self) -> None:
        """Prepare sandboxes for this runner's share of what is queued. A kind whose backend is not here is others' work."""
        share = QueueShare(self._runner.runner_id)
        async with aclosing(self._context.fleet.follow()) as batches:
            async for batch in batches:
                share.read(batch)
                queued = share.share(now=time.monotonic())
                self._runner.pool.want([each for each in queued if each.kind.backend in self._runner.sandboxes])

    async def _follow(self) -> None:
        async for batch in self._context.bus.follow(self._start.topic, self._start.partition, self._start.offset):
            for record in batch:
                if record.key == self._runner.runner_id:
                    await self._take(record)

    async def _take(self, record: Record) -> None:
        try:
            event = await self._runner.events.event(record)
        except BadRecord as bad:
            await self._runner.events.dead_letter(SERVICE, record, str(bad))
            return
        match event:
            case SessionDispatched() if self._held.take(event):
                self._begin(event, record)
            case SessionCancelled():
                self._end_all(event.session_id)
            case _:
                pass

    def _begin(self, event: SessionDispatched, record: Record) -> None:
        for lower in self._held.superseded(event):
            self._sessions[lower][0].end(ExitCause.STOPPED)
        attempt = Running(session_id=event.session_id, attempt=event.attempt)
        session = AttemptRun(event, record.timestamp_ms / 1000, self._runner, context_of(record))
        task = asyncio.create_task(self._run(session, attempt), name=f"session {event.session_id}")
        self._sessions[attempt] = (session, task)
        if self._stopping:
            session.end(ExitCause.STOPPED)

    def _end_all(self, session_id: str) -> None:
        for attempt, (session, _) in self._sessions.items():
            if attempt.session_id == session_id:
                session.end(ExitCause.CANCELLED)

    async def _run(self, session: AttemptRun, attempt: Running) -> None:
        """Run one session in its slot. If it cannot report its end, its lease expires instead."""
        try:
            async with self._slots:
                await session.run()
        except Exception:  # the one place where a session's failure is caught
            log.exception("session_failed", session_id=attempt.session_id, attempt=attempt.attempt)
        finally:
            self._held.release(attempt)
            del self._sessions[attempt]


@asynccontextmanager
async def open_service(config: Config, context: ServiceContext, *, timings: RunnerTimings = RUNNER_TIMINGS) -> AsyncIterator[Service]:
    """Kill what a dead runner left, then yield the runner."""
    async with AsyncExitStack() as stack:
        await asyncio.to_thread(installed)
        runner_id = f"{context.instance_id}-{SERVICE}"
        partition = context.bus.partition_of(Topic.DISPATCH, runner_id)
        start = Position(Topic.DISPATCH, partition, await context.bus.end(Topic.DISPATCH, partition))
        sandboxes = await stack.enter_async_context(open_backends(Path(config.state) / "sandboxes" / context.instance_id, config.sandboxes))
        http = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, ssl=client_context(config.tls_ca_file)))
        )
        owners, recordings = Owners(), Recordings(context.secrets)
        blobs = context.waiting_blobs()
        limits = PoolLimits(sandboxes=config.warm_sandboxes, preparing=config.preparing, rest_seconds=config.warm_seconds)
        runner_context = RunnerContext(
            config=config,
            runner_id=runner_id,
            events=EventLog(context.bus, blobs, metrics(context.registry)),
            bus=Dependency("bus"),
            blobs=blobs,
            secrets=context.secrets,
            sandboxes=sandboxes,
            bundles=Bundles(Path(config.harness_cache)),
            pool=WarmPool(limits, metrics(context.registry)),
            client=GatewayClient(http, owners),
            bodies=ByteBudget(config.bodies_bytes, shares=config.capacity),
            recordings=recordings,
            metrics=metrics(context.registry),
            timings=timings,
        )
        runner = Runner(runner_context, context, owners, start)
        yield Service(
            name=SERVICE,
            routes=recordings.routes(),
            run=runner.run,
            ready=runner.ready,
            warnings=lambda: troubles(sandboxes),
            heartbeat=runner.heartbeat,
            leases=runner.leases,
            drain=runner.drain,
        )
