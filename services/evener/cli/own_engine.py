"""Keeps an engine running: restarts it when it dies, and announces in `fleet` when it comes and goes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NoReturn, Protocol

import structlog

from evener.cli.config import Config
from evener.engines.embedded import start_embedded
from evener.engines.port import EngineError
from evener.engines.vllm_server import SPLIT_PROMPTS, VllmOptions, VllmServer, start_vllm
from evener.proto.errors import EvenerError
from evener.runtime.interrupt import ended_by
from evener.service.supervisor import RESTART

MAX_FAILED_STARTS: Final = 5
"""The number of failed restarts in a row after which the engine is given up."""

log = structlog.get_logger()

Left = Callable[[], Awaitable[object]]
"""Called when the engine is gone; or awaited, until another service says so."""
Announce = Callable[[str, str], Awaitable[None]]
"""Called with the engine's URL and kind when it serves."""


class EngineProcess(Protocol):
    """An engine that serves in a process of its own."""

    @property
    def url(self) -> str: ...

    async def died(self) -> EngineError: ...

    async def stop(self) -> None: ...


Start = Callable[[], Awaitable[EngineProcess]]


@asynccontextmanager
async def kept(kind: str, start: Start, join: Announce, left: Left, evicted: Left | None = None) -> AsyncIterator[None]:
    """Run an engine while this block runs. Raises what its first start raises.

    `left` is called when the engine is gone. With `evicted`, the block runs while the engine starts, and a start that fails ends it; the
    engine is also started anew when `evicted` returns: then nobody knows its weights.
    """
    first = await start() if evicted is None else None
    async with ended_by(_keep(kind, start, join, left, evicted or asyncio.Event().wait, first=first)):
        yield


async def _keep(kind: str, start: Start, join: Announce, left: Left, evicted: Left, *, first: EngineProcess | None) -> NoReturn:
    process = first or await start()
    while True:
        try:
            await join(process.url, kind)
            log.info("engine_started", kind=kind, url=process.url)
            log.error("engine_died", kind=kind, error=await _end_of(process, evicted))
        finally:
            await process.stop()
        await left()
        process = await _again(kind, start)


async def _end_of(process: EngineProcess, evicted: Left) -> str:
    """Wait until the engine has died, or was evicted from the fleet; return which."""
    dying, leaving = asyncio.ensure_future(process.died()), asyncio.ensure_future(evicted())
    try:
        await asyncio.wait({dying, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return str(dying.result()) if dying.done() else "it was evicted from the fleet"
    finally:
        for task in (dying, leaving):
            task.cancel()
        await asyncio.gather(dying, leaving, return_exceptions=True)


async def _again(kind: str, start: Start) -> EngineProcess:
    """Start the engine after a pause. After too many failed starts, raise the error of the last one."""
    for failures in range(1, MAX_FAILED_STARTS + 1):
        await asyncio.sleep(RESTART.seconds(failures))
        try:
            return await start()
        except EvenerError as failed:
            log.error("engine_not_started", kind=kind, error=str(failed), failures=failures)
            if failures == MAX_FAILED_STARTS:
                raise
    raise AssertionError


async def start_own_embedded(config: Config) -> EngineProcess:
    """Start llama.cpp with this configuration."""
    model = Path(config.model) if config.model else None
    return await start_embedded(model, context=config.context, parallel=config.calls, threads=config.threads)


async def start_own_vllm(config: Config) -> VllmServer:
    """Start vLLM with this configuration and report the progress, since a start takes from half a minute to many minutes."""
    options = VllmOptions(model=Path(config.model or ""), program=config.vllm, served_name=config.policy, extra=config.vllm_options)
    logged = Path(config.state) / "engine.log"
    server = await start_vllm(options, logged)
    log.info("engine_starting", kind="vllm", pid=server.pid, log=str(logged))
    if server.seeds_kill:
        log.warning("seeds_may_end_the_engine", hint=f"vLLM for CPU: run without sampling.seed, or give --vllm-options {SPLIT_PROMPTS}")
    try:
        await server.until_ready(lambda seconds, line: log.info("engine_starting", kind="vllm", seconds=round(seconds), last=line))
    except BaseException:
        await server.stop()
        raise
    return server
