"""The process that is measured: a gateway on either bus, and beside it a hand that plays scheduler and runner over HTTP.

`python -m proofs.bench.gateway_served`, configured like any service. The hand starts and ends sessions, commits bare records at a
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
from typing import Final

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tests.support.builders import alone, heartbeat, started
from tests.support.other_services import OtherServices

from evener.bus.port import Outgoing
from evener.proto.fleet import Heartbeat
from evener.proto.sessions import CallClosed
from evener.proto.spec import Streaming
from evener.proto.topics import Topic
from evener.provider_gateway.config import Config
from evener.service.auth import seal_capability
from evener.service.config import ServiceConfig
from evener.service.config_app import load
from evener.service.context import Service, ServiceContext
from evener.service.host import run_process
from evener.service.supervisor import Wanted

CAPABLE_SECONDS: Final = 3600.0
STATM: Final = Path("/proc/self/statm")


class Sessions(Struct, frozen=True, kw_only=True):
    """Sessions to start or to end, by their names."""

    names: list[str]
    streaming: Streaming = Streaming.BUFFERED


class Commits(Struct, frozen=True, kw_only=True):
    """Bare commits: as many records each as there are sizes, with nothing but the bus around them."""

    sizes: list[int]
    """The size of each record of a commit, in bytes."""
    per_second: float
    seconds: float


class Started(Struct, frozen=True, kw_only=True):
    """The fields of a session that a relay knows."""

    capability: str
    partition: int


class Cost(Struct, frozen=True, kw_only=True):
    """What the process has used so far."""

    cpu_seconds: float
    rss_mb: float
    tasks: int
    """The number of tasks in the event loop now."""
    sessions: int


class Endpoints:
    """Plays the services around a gateway, inside its process: the embedded bus belongs to one process."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._others = OtherServices(context.bus, context.blobs)
        self._live = 0

    async def join(self, request: Request) -> Response:
        """Let an engine join."""
        await self._others.join("e1", (await request.body()).decode(), max_concurrency=1_000_000)
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
            await self._others.exited(name)
        self._live -= len(asked.names)
        return Response()

    async def commit(self, request: Request) -> Response:
        """Commit at a steady rate, whether or not the last commit is through; return the seconds that each one took."""
        asked = msgspec.json.decode(await request.body(), type=Commits)
        producer = await self._context.bus.producer("bench")
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
        seconds, rss_mb = used.ru_utime + used.ru_stime, pages * resource.getpagesize() / 2**20
        return _json(Cost(cpu_seconds=seconds, rss_mb=rss_mb, tasks=len(asyncio.all_tasks()), sessions=self._live))

    async def answers(self, _: Request) -> Response:
        """Return the ids of all answers whose calls are committed as closed."""
        return _json([event.answer_id for event in await self._others.read(Topic.SESSIONS, CallClosed)])

    async def _start(self, name: str, streaming: Streaming) -> Started:
        event = started(name, alone(name, streaming=streaming), at=time.time())
        capability = await self._others.write_start(event, seconds=CAPABLE_SECONDS)
        return Started(capability=seal_capability(self._context.secrets, capability), partition=capability.partition)


@asynccontextmanager
async def open_hand(config: ServiceConfig, context: ServiceContext) -> AsyncIterator[Service]:
    """Open the hand as a service of the same process."""
    del config
    ends = Endpoints(context)
    named = {"join": ends.join, "start": ends.start, "end": ends.end, "commit": ends.commit}
    routes = [Route(f"/bench/{name}", endpoint, methods=["POST"]) for name, endpoint in named.items()]
    routes += [Route("/bench/cost", ends.cost), Route("/bench/answers", ends.answers)]

    async def run() -> None:
        await asyncio.Event().wait()

    async def drain() -> None:
        pass

    def sign() -> Heartbeat:
        return heartbeat("bench", "bench-hand", at=time.time())

    yield Service(name="bench", routes=routes, run=run, ready=dict, heartbeat=sign, drain=drain)


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


if __name__ == "__main__":
    config = load(Config, sys.argv[1:], {}, "provider_gateway")
    gateway = importlib.import_module("evener.provider_gateway.service").open_service
    wanted = [Wanted(name="provider_gateway", config=config, open=gateway), Wanted(name="bench", config=config, open=open_hand)]
    raise SystemExit(run_process(config, wanted))
