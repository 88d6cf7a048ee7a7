"""All six services in the process of a test, with a scripted engine."""

import asyncio
import importlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.support.gateway import POLICY
from tests.support.other_services import OtherServices
from tests.support.service_context import QUICK
from tests.support.waiting import until

from evener.blobs.port import Blobs
from evener.blobs.waited import BlobTimings
from evener.cli.up import SERVICES
from evener.client.client import Client
from evener.client.errors import Unavailable
from evener.engines.scripted import ScriptedServer
from evener.proto.tasks import TaskOptions
from evener.service.config import ServiceConfig
from evener.service.context import ServiceContext
from evener.service.host import run_services
from evener.service.supervisor import Wanted
from evener.tasks.directory import bundled
from evener.tasks.pack import pack


@asynccontextmanager
async def together(
    folder: Path,
    engine: ScriptedServer,
    timings: BlobTimings = QUICK,
    *,
    blobs: Blobs | None = None,
    capacity: int = 4,
    engine_calls: int = 64,
    of_runner: Mapping[str, Any] = MappingProxyType({}),
    of_evaluator: Mapping[str, Any] = MappingProxyType({}),
    **of_scheduler: Any,
) -> AsyncIterator[ServiceContext]:
    """Run all services, their state in a folder; yield what they share. They are cancelled at the end.

    `blobs` None: a folder. `capacity`: sessions that run at a time. `engine_calls`: calls that the engine takes at a time. `of_runner`,
    `of_evaluator`, `of_scheduler`: further keys of their configurations.
    """
    own: dict[str, dict[str, Any]] = {
        "sandbox_runner": {"trust_local": True, "capacity": capacity} | dict(of_runner),
        "evaluator": dict(of_evaluator),
        "provider_gateway": {"policies": (POLICY,)},
        "scheduler": {"tick_seconds": 0.2, "lease_seconds": 60.0} | of_scheduler,
    }
    wanted = []
    for name in SERVICES:
        config = importlib.import_module(f"evener.{name}.config").Config(state=str(folder), **own.get(name, {}))
        wanted.append(Wanted(name=name, config=config, open=importlib.import_module(f"evener.{name}.service").open_service))
    opened: asyncio.Future[ServiceContext] = asyncio.get_running_loop().create_future()

    @asynccontextmanager
    async def beside(context: ServiceContext) -> AsyncIterator[None]:
        await OtherServices(context.bus, context.blobs).join("e1", engine.url, max_concurrency=engine_calls)
        opened.set_result(context)
        yield

    running = asyncio.ensure_future(
        run_services(ServiceConfig(state=str(folder)), wanted, beside=[beside], blobs=blobs, blob_timings=timings)
    )
    try:
        both: set[asyncio.Future[Any]] = {running, opened}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        yield opened.result()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def submit(client: Client, name: str, options: TaskOptions, task_id: str = "t") -> None:
    """Submit a bundled task, as soon as all services are there."""
    packed = await asyncio.to_thread(pack, bundled() / name)

    async def submitted() -> bool:
        with suppress(Unavailable):
            await client.put_blob(packed.data)
            await client.submit(options, task=packed.ref, task_id=task_id)
            return True
        return False

    await until(submitted)
