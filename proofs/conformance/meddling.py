"""Interferes with a session while an answer of its engine waits at a gate."""

import asyncio
import contextlib
import signal
import time
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
from proofs.conformance.cases import Case
from proofs.conformance.facts import Exited
from proofs.conformance.sites import POLL_SECONDS, Site

from evener.client.views import EngineRequest
from evener.proto.ids import session_of

STOPPED_SECONDS: Final = 60.0
"""The time limit for the engine to stop sampling after a cancellation: its answer waits at a gate and does not end by itself."""
MARKER: Final = "marker"
"""An engine of a policy that there is not."""
GONE_SECONDS: Final = 60.0
"""The time limit for all processes of the harness to end after their task: they are asked first, and killed after 2 s."""


async def meddle(at: Site, case: Case, task_id: str) -> list[str]:
    """Interfere as the case says; return what went wrong."""
    if case.meddle is None:
        return []
    await at.engine.waiting(case.meddle, seconds=case.limit_seconds)
    match case.meddle:
        case "cancel":
            return await _cancel(at, task_id)
        case "kill":
            await _kill(at)
            at.engine.go(case.meddle, None)
        case "drain":
            await _drain(at, task_id)
    return []


async def _kill(at: Site) -> None:
    """End the gateway; return once the engine has seen that its client is gone, and another gateway is coming."""
    ended = len(at.engine.ledger)
    at.gateway.tell(at.kill)
    while len(at.engine.ledger) == ended:  # noqa: ASYNC110 - the engine writes it down, and has no event
        await asyncio.sleep(POLL_SECONDS)
    if at.kill is signal.SIGKILL:
        await at.gateway.start()


async def _drain(at: Site, task_id: str) -> None:
    """Let the only engine take no more calls until the session was refused one."""
    (engine,) = (await at.client.fleet()).engines
    await at.client.drain_engine(engine.engine_id)
    await _fleet_is_read(at)
    at.engine.go("drain", None)
    while not refusals(at, task_id):  # noqa: ASYNC110 - the proxy writes them down, and has no event
        await asyncio.sleep(POLL_SECONDS)
    assert engine.kind is not None
    assert engine.url is not None
    await at.client.join_engine(EngineRequest(engine_id=engine.engine_id, kind=engine.kind, url=engine.url, policy=engine.policy))


async def _fleet_is_read(at: Site) -> None:
    """Wait until the gateway has heeded all that was told to the fleet: it says when it refuses an engine that joined last."""
    await at.client.join_engine(EngineRequest(engine_id=MARKER, kind="scripted", url=at.engine.url, policy=MARKER))
    async with aiohttp.ClientSession() as http:
        refused = False
        while not refused:
            await asyncio.sleep(POLL_SECONDS)
            async with http.get(f"{at.gateway.url}/readyz") as answer:
                refused = f"engine {MARKER} refused" in await answer.text()
    await at.client.remove_engine(MARKER)


async def _cancel(at: Site, task_id: str) -> list[str]:
    """Cancel the task, and see the sampling stop."""
    await at.client.cancel(task_id)
    asked = time.monotonic()
    while at.engine.sampling:
        await asyncio.sleep(POLL_SECONDS)
        if time.monotonic() - asked > STOPPED_SECONDS:
            return [f"the engine still sampled {STOPPED_SECONDS:.0f} s after the cancellation"]
    return []


async def all_gone(task_id: str) -> list[str]:
    """Return what is wrong where processes of a task that has ended live on."""
    try:
        async with asyncio.timeout(GONE_SECONDS):
            while _living(task_id):  # noqa: ASYNC110 - the kernel sends no event
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        return [f"{_living(task_id)} processes of the harness live on"]
    return []


def refusals(at: Site, task_id: str) -> tuple[int, ...]:
    """Return the statuses that a task's CLI was refused with, as the proxy saw them."""
    events: list[dict[str, Any]] = [msgspec.json.decode(line) for line in at.runner.log.splitlines() if '"refused"' in line]
    return tuple(event["status"] for event in events if event["session_id"].startswith(task_id))


async def exit_of(at: Site, task_id: str) -> Exited | None:
    """Return how the CLI of a task that has ended did. None: the sandbox-runner does not say."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(GONE_SECONDS):
            while True:
                for line in at.runner.log.splitlines():
                    with contextlib.suppress(msgspec.MsgspecError):  # another event
                        exited = msgspec.json.decode(line, type=Exited)
                        if exited.session_id == session_of(task_id, 0):
                            return exited
                await asyncio.sleep(POLL_SECONDS)
    return None


def _living(task_id: str) -> int:
    """Return how many processes have the session's folder in their environment."""
    found = 0
    for environment in Path("/proc").glob("[0-9]*/environ"):
        try:
            found += task_id.encode() in environment.read_bytes()
        except OSError:
            continue
    return found
