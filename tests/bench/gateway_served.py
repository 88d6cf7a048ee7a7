"""The process that is measured: a gateway on either bus, and beside it a hand that plays scheduler and runner over HTTP.

`python -m tests.bench.gateway_served`, configured like any service. The hand starts and ends sessions, commits bare records at a
steady rate, says what the process has cost, and looks up in the log which answers are committed.
"""

import asyncio
import importlib
import resource
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from evener.bus.port import Outgoing
from evener.proto.codec import decode
from evener.proto.ends import ExitCause
from evener.proto.fleet import EngineJoined, Heartbeat
from evener.proto.sessions import CallClosed, HarnessExited, SessionStarted
from evener.proto.spec import GraderSpec, HarnessSpec, Purpose, Quirks, Sampling, SessionSpec, Streaming
from evener.proto.topics import Topic
from evener.provider_gateway.config import Config
from evener.service.auth import Capability, seal_capability
from evener.service.config import ServiceConfig, load
from evener.service.events import EventLog
from evener.service.host import run_process
from evener.service.parts import Parts, Service
from evener.service.supervisor import Wanted

CAPABLE_SECONDS: Final = 3600.0
STATM: Final = Path("/proc/self/statm")


class Sessions(Struct, frozen=True, kw_only=True):
    """Sessions to start or to end, by their names."""

    names: list[str]
    streaming: Streaming = Streaming.HOLD


class Commits(Struct, frozen=True, kw_only=True):
    """Bare commits: as many records each as there are sizes, with nothing but the bus around them."""

    sizes: list[int]
    """Bytes."""
    per_second: float
    seconds: float


class Started(Struct, frozen=True, kw_only=True):
    """What a relay gets to know of a session."""

    capability: str
    partition: int


class Cost(Struct, frozen=True, kw_only=True):
    """What the process has used so far."""

    cpu_seconds: float
    rss_mb: float
    sessions: int


class Hand:
    """Plays what stands around a gateway, inside its process: the embedded bus belongs to one process."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._events = EventLog(parts.bus, parts.blobs)
        self._live = 0

    async def join(self, request: Request) -> Response:
        """Let an engine join."""
        url = (await request.body()).decode()
        joined = EngineJoined(engine_id="e1", kind="scripted", url=url, policy="policy", max_concurrency=1_000_000, joined_at=time.time())
        await self._events.send(Topic.FLEET, "e1", joined)
        return Response()

    async def start(self, request: Request) -> Response:
        """Start sessions; return what their relays get to know."""
        asked = msgspec.json.decode(await request.body(), type=Sessions)
        self._live += len(asked.names)
        return _json([await self._start(name, asked.streaming) for name in asked.names])

    async def end(self, request: Request) -> Response:
        """End sessions as if their harnesses had exited."""
        asked = msgspec.json.decode(await request.body(), type=Sessions)
        for name in asked.names:
            left = HarnessExited(
                session_id=name, attempt=1, start_id=f"{name}-s", cause=ExitCause.EXITED, exit_code=0, exited_at=time.time()
            )
            await self._events.send(Topic.SESSIONS, name, left, session_id=name)
        self._live -= len(asked.names)
        return Response()

    async def commit(self, request: Request) -> Response:
        """Commit at a steady rate, whether or not the last commit is through; return the seconds that each one took."""
        asked = msgspec.json.decode(await request.body(), type=Commits)
        producer = await self._parts.bus.producer("bench")
        taken: list[float] = []

        async def one(number: int) -> None:
            records = [Outgoing(topic=Topic.BUILT, key=f"k{number}", value=b"\0" * size) for size in asked.sizes]
            before = time.perf_counter()
            await producer.commit(records)
            taken.append(time.perf_counter() - before)

        began = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as tasks:
                for number in range(int(asked.seconds * asked.per_second)):
                    await asyncio.sleep(max(0.0, began + number / asked.per_second - time.perf_counter()))
                    tasks.create_task(one(number))
        finally:
            await producer.aclose()
        return _json(taken)

    async def cost(self, _: Request) -> Response:
        """Return what the process has cost so far."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        pages = int(STATM.read_text().split()[1])
        return _json(Cost(cpu_seconds=used.ru_utime + used.ru_stime, rss_mb=pages * resource.getpagesize() / 2**20, sessions=self._live))

    async def answers(self, _: Request) -> Response:
        """Return the ids of all answers whose calls are committed as closed."""
        bus, found = self._parts.bus, list[str]()
        for partition in range(bus.partitions_of(Topic.SESSIONS)):
            async for record in bus.read(Topic.SESSIONS, partition):
                event: Any = decode(record.value or b"")
                if isinstance(event, CallClosed):
                    found.append(event.answer_id)
        return _json(found)

    async def _start(self, name: str, streaming: Streaming) -> Started:
        spec = SessionSpec(
            run_id="bench",
            task_id=name,
            group_id=name,
            group_size=1,
            index=0,
            purpose=Purpose.TRAIN,
            task=None,
            harness=HarnessSpec(name="script"),
            policy="policy",
            sampling=Sampling(),
            streaming=streaming,
            grader=GraderSpec(name="none"),
        )
        now = time.time()
        started = SessionStarted(
            session_id=name,
            attempt=1,
            start_id=f"{name}-s",
            runner_id="bench",
            dispatched_at=now,
            started_at=now,
            spec=spec,
            quirks=Quirks(),
        )
        at = await self._events.send(Topic.SESSIONS, name, started, session_id=name)
        capability = Capability(
            session_id=name,
            attempt=1,
            start_id=started.start_id,
            partition=at.partition,
            offset=at.offset,
            expires_at=now + CAPABLE_SECONDS,
        )
        return Started(capability=seal_capability(self._parts.secrets, capability), partition=at.partition)


@asynccontextmanager
async def open_hand(config: ServiceConfig, parts: Parts) -> AsyncIterator[Service]:
    """Open the hand as a service of the same process."""
    del config
    hand = Hand(parts)
    named = {"join": hand.join, "start": hand.start, "end": hand.end, "commit": hand.commit}
    routes = [Route(f"/bench/{name}", endpoint, methods=["POST"]) for name, endpoint in named.items()]
    routes += [Route("/bench/cost", hand.cost), Route("/bench/answers", hand.answers)]

    async def run() -> None:
        await asyncio.Event().wait()

    async def drain() -> None:
        pass

    def heartbeat() -> Heartbeat:
        return Heartbeat(instance_id="bench-hand", service="bench", boot_id=parts.boot_id, at=time.time())

    yield Service(name="bench", routes=routes, run=run, ready=dict, heartbeat=heartbeat, drain=drain)


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


if __name__ == "__main__":
    config = load(Config, sys.argv[1:], {}, "provider_gateway")
    gateway = importlib.import_module("evener.provider_gateway.service").open_service
    wanted = [Wanted(name="provider_gateway", config=config, open=gateway), Wanted(name="bench", config=config, open=open_hand)]
    raise SystemExit(run_process(config, wanted))
