"""Keeps the embedded engine running: started again when it dies, under the same engine id."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import structlog

from evener.cli.config import Config
from evener.engines.embedded import EmbeddedProcess, start_embedded

AGAIN_SECONDS: Final = 2.0

log = structlog.get_logger()

Join = Callable[[str, str], Awaitable[None]]
"""Called with the engine's URL and kind whenever it serves."""


@asynccontextmanager
async def embedded(config: Config, join: Join) -> AsyncIterator[None]:
    """Run the embedded engine while this block runs. Raises what its first start raises."""
    first = await _start(config)
    keeping = asyncio.create_task(_keep(config, join, first), name="embedded engine")
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.wait({keeping})


async def _keep(config: Config, join: Join, process: EmbeddedProcess) -> None:
    while True:
        try:
            await join(process.url, "embedded")
            log.error("engine_died", error=str(await process.died()))
        finally:
            await process.stop()
        await asyncio.sleep(AGAIN_SECONDS)
        process = await _start(config)


async def _start(config: Config) -> EmbeddedProcess:
    model = Path(config.model) if config.model else None
    process = await start_embedded(model, context=config.context, parallel=config.slots, threads=config.threads)
    log.info("engine_started", url=process.url, slots=config.slots, threads=config.threads)
    return process
