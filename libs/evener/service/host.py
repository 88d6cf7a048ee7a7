"""Runs services: one in `python -m evener.<service>`, all six in `evener up`. Opens what they share, and closes it in reverse."""

import asyncio
import gc
import importlib
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog
import uvloop
from msgspec import Struct
from prometheus_client import CollectorRegistry, ProcessCollector
from starlette.routing import BaseRoute

from evener.blobs.open import open_blobs
from evener.bus.open import open_bus
from evener.proto.ids import new_id
from evener.service import faults
from evener.service.auth import load_secrets
from evener.service.config import ServiceConfig, load
from evener.service.exits import complain, exit_code
from evener.service.health import health_routes
from evener.service.listener import Mounts, Server, address_of, bind, listen
from evener.service.loop_watch import watch_loop
from evener.service.neighbours import Neighbours
from evener.service.parts import Parts
from evener.service.replay import replay_routes
from evener.service.store import Store
from evener.service.supervisor import Supervisor, Wanted, not_open
from evener.service.telemetry import metrics, set_up_logs, set_up_traces

CLOSE_SECONDS: Final = 15.0
"""What closing may take after the drain; then the process ends at once, with 1."""
STATE_FILE: Final = "evener.json"

log = structlog.get_logger()

Beside = Callable[[Parts], AbstractAsyncContextManager[object]]
"""Something that is open as long as the services are: an embedded engine."""


class RunningUp(Struct, frozen=True, kw_only=True):
    """What the state file says: where commands find the running `evener up`."""

    url: str
    pid: int


def main(section: str, config_type: type[ServiceConfig], module: str) -> None:
    """Run one service as a program: `module` is the one with its `open_service`."""

    def run() -> int:
        config = load(config_type, sys.argv[1:], os.environ, section)
        opener = importlib.import_module(module).open_service
        return run_process(config, [Wanted(name=section, config=config, open=opener)])

    raise SystemExit(exit_code(run))


def run_process(config: ServiceConfig, wanted: Sequence[Wanted], *, beside: Sequence[Beside] = (), state_file: bool = False) -> int:
    """Run services in this process until a signal ends it; return the exit code."""
    faults.arm(os.environ.get("EVENER_FAULTS", ""))
    set_up_logs(config.log_level)
    set_up_traces(wanted[0].name if len(wanted) == 1 else "up")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run_services(config, wanted, beside=beside, state_file=state_file, opened=_spare_collector))
    return 0


async def run_services(
    config: ServiceConfig,
    wanted: Sequence[Wanted],
    *,
    beside: Sequence[Beside] = (),
    state_file: bool = False,
    opened: Callable[[], None] = lambda: None,
) -> None:
    """Run services until SIGTERM or SIGINT. Raises what makes a service impossible to start, and CrashLoop.

    `opened` is called whenever all of them are open.
    """
    async with _signals(config.stop_seconds) as stop, AsyncExitStack() as stack:
        listening = stack.enter_context(bind(config))
        mounts = Mounts()
        parts, store = await _open_parts(config, address_of(config, listening), stack)
        stack.enter_context(watch_loop(metrics(parts.registry)))
        names = [f"{parts.instance_id}-{one.name}" for one in wanted]
        neighbours = Neighbours(parts.bus, parts.secrets, store, boot_id=parts.boot_id, names=names)
        await neighbours.fit()
        supervisors: list[Supervisor] = []

        def remount() -> None:
            mounts.replace(_routes(parts, supervisors))
            mounts.missing = not_open(supervisors)
            if not mounts.missing:
                opened()

        supervisors += [Supervisor(one, parts, remount, neighbours.marked) for one in wanted]
        remount()
        server = await stack.enter_async_context(listen(mounts, listening))
        log.info("listening", url=parts.address, services=[one.name for one in wanted])
        for opening in beside:
            await stack.enter_async_context(opening(parts))
        if state_file:
            stack.enter_context(_told(Path(config.state) / STATE_FILE, parts.address))
        await _run_all(supervisors, [neighbours.watch(), store.watch()], server, stop, config.stop_seconds)


async def _open_parts(config: ServiceConfig, address: str, stack: AsyncExitStack) -> tuple[Parts, Store]:
    state = Path(config.state)
    secrets = load_secrets(state, operator_token=config.operator_token, capability_key=config.capability_key)
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    metrics(registry)  # all series are there from the start
    bus = await stack.enter_async_context(open_bus(config.bus, partitions=config.partitions))
    blobs, boot_id = open_blobs(config.blobs), new_id("b")
    store = Store(blobs, boot_id)
    await store.look()
    parts = Parts(
        bus=bus,
        blobs=blobs,
        secrets=secrets,
        registry=registry,
        instance_id=config.instance,
        boot_id=boot_id,
        address=address,
        store_usable=lambda: store.usable,
    )
    return parts, store


def _routes(parts: Parts, supervisors: Sequence[Supervisor]) -> list[BaseRoute]:
    def conditions() -> dict[str, dict[str, bool]]:
        return {supervisor.name: supervisor.conditions() for supervisor in supervisors}

    routes = [*health_routes(parts.bus, parts.registry, conditions, parts.store_usable), *replay_routes(parts.bus, parts.secrets)]
    for supervisor in supervisors:
        if supervisor.service is not None:
            routes += supervisor.service.routes
    return routes


async def _run_all(
    supervisors: Sequence[Supervisor],
    watches: Sequence[Coroutine[Any, Any, None]],
    server: Server,
    stop: asyncio.Event,
    stop_seconds: float,
) -> None:
    """Run until the signal, then drain, end the requests, close the services. What fails for good is raised."""
    running = [asyncio.create_task(watch) for watch in watches]
    running += [asyncio.create_task(supervisor.run(), name=supervisor.name) for supervisor in supervisors]
    stopping = asyncio.create_task(stop.wait())
    try:
        done, _ = await asyncio.wait({stopping, *running}, return_when=asyncio.FIRST_COMPLETED)
        if stopping in done:
            log.info("stopping")
            await _drain(supervisors, stop_seconds)
        for task in done:
            task.result()
    finally:
        await server.stop()
        for task in (stopping, *reversed(running)):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _drain(supervisors: Sequence[Supervisor], seconds: float) -> None:
    draining = [asyncio.create_task(supervisor.drain()) for supervisor in supervisors]
    _, late = await asyncio.wait(draining, timeout=seconds)
    for task in late:
        task.cancel()
    for result in await asyncio.gather(*draining, return_exceptions=True):
        if isinstance(result, BaseException):
            log.warning("not_drained", error=repr(result))


@asynccontextmanager
async def _signals(stop_seconds: float) -> AsyncIterator[asyncio.Event]:
    """Yield the event of the first SIGTERM or SIGINT. The second ends the process."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            os._exit(1)
        stop.set()
        loop.call_later(stop_seconds + CLOSE_SECONDS, _too_long)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        yield stop
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _spare_collector() -> None:
    """Keep libraries, templates and tokenizers, which stay, out of garbage collections: each stopped all calls for 20 to 40 ms."""
    gc.collect()
    gc.freeze()


def _too_long() -> None:
    complain("the stop took too long; what was open is handed back when its lease ends")
    os._exit(1)


@contextmanager
def _told(path: Path, url: str) -> Iterator[None]:
    """Keep the state file while this block runs."""
    content = msgspec.json.encode(RunningUp(url=url, pid=os.getpid()))
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    Path(file.name).replace(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
