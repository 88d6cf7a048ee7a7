"""A runner with real sandboxes: how soon a session's first call comes from a warm one, and what many sessions leave behind.

The runner is the real one, on the embedded log, in this process. The scheduler and the gateway beside it are played: the first tells what
is queued and dispatches sessions, the second answers every call at once.
"""

import asyncio
import gc
import os
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from msgspec import Struct
from proofs.figures import percentile
from tests.support.builders import alone, dispatched, heartbeat
from tests.support.frames_gateway import FramesGateway, frames_gateway
from tests.support.service_context import context_on, running_service
from tests.support.waiting import until

from evener.bus.open import open_bus
from evener.proto.codec import decode
from evener.proto.fleet import QueuedSessions
from evener.proto.reasons import ExitCause
from evener.proto.sandbox import SandboxKind
from evener.proto.sessions import HarnessExited
from evener.proto.spec import HarnessSpec, TaskRef
from evener.proto.topics import Topic
from evener.sandbox_runner.config import Config
from evener.sandbox_runner.service import open_service
from evener.sandboxes.config import DockerConfig, SandboxesConfig
from evener.service.auth import open_capability
from evener.service.context import Service, ServiceContext
from evener.service.events import EventLog
from evener.tasks.directory import bundled, load
from evener.tasks.pack import pack
from evener.tasks.sandbox_digest import sandbox_digest

RUNNER: Final = "test-sandbox_runner"
TASK: Final = "ten-words"
IMAGE: Final = "evener-base"
RUNNING: Final = 4
WARM: Final = 6
BEAT_SECONDS: Final = 2.0
WARM_UP: Final = 20
"""Sessions that come before anything is counted: threads, connections and caches are there then."""
NO_LEAK: Final = {"descriptors": 8.0, "sockets": 8.0, "threads": 8.0, "memory_mb": 16.0}
"""Growth that counts as none: connections that are kept alive, threads of bounded pools, what allocators keep."""


class Left(Struct, frozen=True, kw_only=True):
    """What there is of everything that a session uses, while no session runs and nothing is warm."""

    containers: int
    folders: int
    """Sandboxes on the disk."""
    processes: int
    descriptors: int
    sockets: int
    threads: int
    memory_mb: float


class FirstCalls(Struct, frozen=True, kw_only=True):
    """From the dispatch of a session to its first request at the gateway, one session at a time, in milliseconds."""

    warm_ms_p50: float
    warm_ms_p90: float
    cold_ms_p50: float
    sessions: int
    """The number of each."""


class ManySessions(Struct, frozen=True, kw_only=True):
    """Sessions that ran through warm sandboxes, RUNNING at a time."""

    sessions: int
    warm: int
    """Those that got a warm sandbox."""
    seconds: float
    cpu_ms_per_session: float
    """The CPU of this process: the runner, its relays and the log, and the gateway's double."""
    before: Left
    after: Left
    leaked: dict[str, float]
    """What there is more of than before, by name."""


class _Sessions:
    """Plays scheduler and gateway of one runner."""

    def __init__(self, context: ServiceContext, service: Service, gateway: FramesGateway, kind: SandboxKind, task: TaskRef) -> None:
        self.waiting = 0
        """What the scheduler says is queued."""
        self.service = service
        self.registry = context.registry
        self._context = context
        self._events = EventLog(context.bus, context.blobs)
        self._gateway = gateway
        self._kind = kind
        self._task = task
        self._exits: dict[str, HarnessExited] = {}
        self._number = 0

    async def beat(self) -> None:
        """Send the heartbeats of the others, for ever."""
        while True:
            await self.tell(self.waiting)
            await asyncio.sleep(BEAT_SECONDS)

    async def tell(self, waiting: int) -> None:
        """Say how many sessions are queued."""
        self.waiting = waiting
        queued = (QueuedSessions(kind=self._kind, task=self._task, sessions=waiting),) if waiting else ()
        gateway = heartbeat("provider_gateway", "g", at=time.time(), address=self._gateway.url, partitions=(0,), epochs=((0, 1),))
        for beat in (gateway, heartbeat("scheduler", "s", at=time.time(), active_epoch=1, queued=queued)):
            await self._events.send(Topic.FLEET, beat.instance_id, beat)

    async def follow(self) -> None:
        """Read the ends of sessions, for ever."""
        async for records in self._context.bus.follow(Topic.SESSIONS, 0, 0):
            for record in records:
                if record.value is not None and isinstance(event := decode(record.value), HarnessExited):
                    self._exits[event.session_id] = event

    @property
    def warm(self) -> int:
        """The number of warm sandboxes."""
        return sum(one.ready for one in self.service.heartbeat().warm)

    async def run(self) -> float:
        """Run one session to its end; return the seconds from its dispatch to its first request. Raises AssertionError if it fails."""
        self._number += 1
        session_id = f"bench-{self._number}.0"
        wanted = alone(task=self._task, harness=HarnessSpec(name="script", sandbox=self._kind.backend))
        event = dispatched(session_id, wanted, at=time.time(), runner_id=RUNNER)
        began = time.monotonic()
        await self._events.send(Topic.DISPATCH, RUNNER, event)
        exited = (await until(self._ended(session_id), bool))[0]
        if exited.cause is not ExitCause.EXITED or exited.exit_code:
            msg = f"{session_id}: {exited.cause} {exited.exit_code} {exited.detail}"
            raise AssertionError(msg)
        first = next(
            seen for seen in self._gateway.seen if open_capability(self._context.secrets, seen.capability).session_id == session_id
        )
        return first.at - began

    def _ended(self, session_id: str) -> Callable[[], Awaitable[list[HarnessExited]]]:
        async def ended() -> list[HarnessExited]:
            return [self._exits[session_id]] if session_id in self._exits else []

        return ended

    async def idle(self) -> None:
        """Wait until nothing runs and nothing is warm."""
        await self.tell(0)
        assert self.service.leases is not None
        leases = self.service.leases

        async def is_idle() -> bool:
            return not leases().running and not self.warm

        await until(is_idle)
        self._gateway.seen.clear()
        self._exits.clear()


@asynccontextmanager
async def _runner(folder: Path, backend: str, docker_host: str) -> AsyncIterator[_Sessions]:
    path = bundled() / TASK
    packed, task = await asyncio.to_thread(pack, path), await asyncio.to_thread(load, path)
    kind = SandboxKind(backend=backend, harness="script", needs=await asyncio.to_thread(sandbox_digest, task.sandbox))
    sandboxes = SandboxesConfig(docker=DockerConfig(host=docker_host, image=IMAGE))
    config = Config(state=str(folder), capacity=RUNNING, warm_sandboxes=WARM, preparing=2, warm_seconds=0.0, sandboxes=sandboxes)
    async with open_bus(f"embedded:{folder / 'bus'}", partitions=1) as bus, frames_gateway() as gateway:
        context = context_on(bus, folder, instance_id="test")
        await context.blobs.put(packed.data)
        async with open_service(config, context) as service, running_service(service), asyncio.TaskGroup() as tasks:
            played = _Sessions(context, service, gateway, kind, packed.ref)
            others = [tasks.create_task(played.beat()), tasks.create_task(played.follow())]
            try:
                yield played
            finally:
                for other in others:
                    other.cancel()


async def measure_first_calls(folder: Path, backend: str, docker_host: str, sessions: int) -> FirstCalls:
    """Run sessions one at a time: cold ones, then ones for each of which a sandbox is warm."""
    async with _runner(folder, backend, docker_host) as played:
        await played.run()
        cold = [await played.run() for _ in range(sessions)]
        warm = []
        for _ in range(sessions):
            await played.tell(1)
            await until(_all_of(lambda: played.warm), bool)
            warm.append(await played.run())
        await played.idle()
    return FirstCalls(
        warm_ms_p50=percentile(warm, 0.5) * 1000,
        warm_ms_p90=percentile(warm, 0.9) * 1000,
        cold_ms_p50=percentile(cold, 0.5) * 1000,
        sessions=sessions,
    )


async def measure_many(folder: Path, docker_host: str, sessions: int) -> ManySessions:
    """Run many sessions in Docker, and compare what there is before and after them."""
    async with _runner(folder, "docker", docker_host) as played:
        await _run(played, WARM_UP)
        before = _left(folder, docker_host)
        starts, cpu, began = _warm_starts(played), time.process_time(), time.perf_counter()
        await _run(played, sessions)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        after = _left(folder, docker_host)
        return ManySessions(
            sessions=sessions,
            warm=int(_warm_starts(played) - starts),
            seconds=seconds,
            cpu_ms_per_session=cpu / sessions * 1000,
            before=before,
            after=after,
            leaked=leaked(before, after),
        )


async def _run(played: _Sessions, sessions: int) -> None:
    left = list(range(sessions))

    async def slot() -> None:
        while left:
            left.pop()
            await played.tell(len(left))
            await played.run()

    await asyncio.gather(*(slot() for _ in range(RUNNING)))
    await played.idle()


def _all_of(count: Callable[[], int]) -> Callable[[], Awaitable[int]]:
    async def counted() -> int:
        return count()

    return counted


def _warm_starts(played: _Sessions) -> float:
    return played.registry.get_sample_value("evener_sandbox_starts_total", {"prepared": "warm"}) or 0.0


def _left(folder: Path, docker_host: str) -> Left:
    """Look at this process, its folder and its daemon. Blocks."""
    gc.collect()
    listed = subprocess.run(["docker", "--host", docker_host, "ps", "--all", "--quiet"], capture_output=True, check=True)
    kinds = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            kinds.append(str(descriptor.readlink()))
    return Left(
        containers=len(listed.stdout.split()),
        folders=sum(1 for _ in (folder / "sandboxes").glob("*/*/[!.]*")),
        processes=len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()),
        descriptors=len(kinds),
        sockets=sum(kind.startswith("socket:") for kind in kinds),
        threads=len(list(Path("/proc/self/task").iterdir())),
        memory_mb=int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6,
    )


def leaked(before: Left, after: Left) -> dict[str, float]:
    """Return what there is more of than before, by name, beyond what counts as none."""
    grown = {name: getattr(after, name) - getattr(before, name) for name in Left.__struct_fields__}
    return {name: round(more, 1) for name, more in grown.items() if more > NO_LEAK.get(name, 0)}
