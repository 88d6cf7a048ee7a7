"""Runs services: one in `python -m evener.<service>`, all six in `evener up`. Opens what they share, and closes it in reverse order."""

import asyncio
import gc
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog
import uvloop
from msgspec import structs
from prometheus_client import CollectorRegistry, ProcessCollector
from starlette.routing import BaseRoute

from evener.blobs.failing import FailingObjects
from evener.blobs.open import open_blobs
from evener.blobs.port import Blobs
from evener.blobs.waited import BLOB_TIMINGS, BlobTimings
from evener.bus.open import open_bus
from evener.proto.ids import new_id
from evener.runtime import faults
from evener.runtime.open_files import allow_open_files
from evener.service.altered_topics import AlteredTopics
from evener.service.auth import load_secrets
from evener.service.certificate import certificate_of
from evener.service.config import ENVIRONMENT_PREFIX, ServiceConfig
from evener.service.context import ServiceContext
from evener.service.dead_letters import DeadLetters
from evener.service.dead_letters_http import dead_letter_routes
from evener.service.exits import complain
from evener.service.fleet_feed import FleetFeed
from evener.service.health import health_routes
from evener.service.lag import LagWatch
from evener.service.listener import Mounts, Server, address_of, bind, listen
from evener.service.logs import RouteOf, set_up_logs
from evener.service.loop_watch import watch_loop
from evener.service.measured_blobs import MeasuredBlobs
from evener.service.neighbours import Neighbours
from evener.service.renewal import renew_offsets
from evener.service.service_links import service_links
from evener.service.state_folder import STATE_FILE, RunningUp
from evener.service.store import Store
from evener.service.supervisor import Supervisor, Wanted, not_open
from evener.service.telemetry import metrics
from evener.service.tracing import set_up_traces

CLOSE_SECONDS: Final = 15.0
"""The limit of closing after the drain. Then the process exits at once, with 1."""

log = structlog.get_logger()

Beside = Callable[[ServiceContext], AbstractAsyncContextManager[object]]
"""A context that is open as long as the services are, such as an embedded engine."""


def run_process(config: ServiceConfig, wanted: Sequence[Wanted], *, beside: Sequence[Beside] = (), state_file: bool = False) -> int:
    """Run services in this process until a signal ends it; return the exit code."""
    allow_open_files()
    faults.arm(os.environ.get("EVENER_FAULTS", ""))
    name = wanted[0].name if len(wanted) == 1 else "up"
    set_up_logs(config.log_level, service=name, instance=config.instance)
    if links := service_links(os.environ, ENVIRONMENT_PREFIX):
        log.debug("service_links_ignored", variables=sorted(links))
    set_up_traces(name, config.instance)
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
    blobs: Blobs | None = None,
    blob_timings: BlobTimings = BLOB_TIMINGS,
) -> None:
    """Run services until SIGTERM or SIGINT. Raises what prevents a service from starting, and CrashLoop.

    `opened` is called whenever all of them are open. `blobs`: another store than the configured one.
    """
    async with _signals(config.stop_seconds) as stop, AsyncExitStack() as stack:
        certificate = certificate_of(config)
        listening = stack.enter_context(bind(config))
        mounts = Mounts()
        context, store, lag = await _open_context(
            config, address_of(config, listening), stack, blobs or open_blobs(config.blobs), blob_timings
        )
        context = structs.replace(context, alone=len(wanted) == 1)
        stack.enter_context(watch_loop(metrics(context.registry), config.loop_tick_seconds))
        names = [f"{context.instance_id}-{one.name}" for one in wanted]
        altered = AlteredTopics(context.bus, metrics(context.registry))
        neighbours = Neighbours(context.bus, context.fleet, context.secrets, store, boot_id=context.boot_id, names=names)
        await neighbours.fit()
        context = structs.replace(context, agree=neighbours.agree)
        supervisors: list[Supervisor] = []

        def remount() -> None:
            mounts.replace(_routes(context, supervisors, altered.warnings))
            mounts.missing = not_open(supervisors)
            if not mounts.missing:
                opened()

        supervisors += [Supervisor(one, context, remount, neighbours.marked) for one in wanted]
        remount()
        server = await stack.enter_async_context(listen(mounts, listening, None if certificate is None else certificate.context))
        log.info("listening", url=context.address, services=[one.name for one in wanted])
        for opening in beside:
            await stack.enter_async_context(opening(context))
        if state_file:
            stack.enter_context(_told(Path(config.state) / STATE_FILE, context.address))
        watches = [neighbours.watch(), store.watch(), altered.watch(), lag.watch(), renew_offsets(context.bus)]
        watches += [certificate.watch()] if certificate is not None else []
        await _run_all(supervisors, watches, server, stop, config.stop_seconds)


async def _open_context(
    config: ServiceConfig, address: str, stack: AsyncExitStack, opened_blobs: Blobs, blob_timings: BlobTimings
) -> tuple[ServiceContext, Store, LagWatch]:
    state = Path(config.state)
    secrets = load_secrets(
        state,
        operator_token=config.operator_token,
        capability_key=config.capability_key,
        principals_file=config.principals_file,
    )
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    measured = metrics(registry)  # all series are there from the start
    bus = await stack.enter_async_context(
        open_bus(config.bus, partitions=config.partitions, days=config.days, security=config.kafka_security)
    )
    blobs, boot_id = MeasuredBlobs(opened_blobs, measured), new_id("b")
    store = Store(blobs, boot_id)
    measured.blob_store_usable.set_function(lambda: store.usable)
    await store.look()
    lag = LagWatch(bus, measured)
    context = ServiceContext(
        bus=bus,
        fleet=FleetFeed(bus),
        blobs=blobs,
        secrets=secrets,
        registry=registry,
        instance_id=config.instance,
        boot_id=boot_id,
        address=address,
        store_usable=lambda: store.usable,
        failing_objects=FailingObjects(store.holds_ours, lambda: store.usable_since, blob_timings.lost_seconds),
        blob_timings=blob_timings,
        lag=lag.of,
    )
    return context, store, lag


def _routes(context: ServiceContext, supervisors: Sequence[Supervisor], warnings: Callable[[], list[str]]) -> list[BaseRoute]:
    def conditions() -> dict[str, dict[str, bool]]:
        return {supervisor.name: supervisor.conditions() for supervisor in supervisors}

    def all_warnings() -> list[str]:
        objects = context.failing_objects.warnings() if context.failing_objects is not None else ()
        return [
            *warnings(),
            *objects,
            *(warning for supervisor in supervisors if supervisor.service for warning in supervisor.service.warnings()),
        ]

    routes = [*health_routes(context.bus, context.registry, conditions, context.store_usable, all_warnings)]
    routes += dead_letter_routes(DeadLetters(context.bus, context.answering_blobs()), context.secrets)
    for supervisor in supervisors:
        if supervisor.service is not None:
            routes += [RouteOf(supervisor.name, route) for route in supervisor.service.routes]
    return routes


async def _run_all(
    supervisors: Sequence[Supervisor],
    watches: Sequence[Coroutine[Any, Any, None]],
    server: Server,
    stop: asyncio.Event,
    stop_seconds: float,
) -> None:
    """Run until the signal, then drain, end the requests, and close the services. A permanent failure is raised."""
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
    """Yield the event of the first SIGTERM or SIGINT. The second signal ends the process."""
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
    """Exclude libraries, templates and tokenizers from garbage collection, each of which stopped all calls for 20 to 40 ms."""
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
