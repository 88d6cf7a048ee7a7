"""What is done to a session while an answer of its engine waits at a gate."""

import asyncio
import signal
import time
from pathlib import Path
from typing import Final

from tests.conformance.cases import Case
from tests.conformance.sites import POLL_SECONDS, Site

STOPPED_SECONDS: Final = 1.0
"""So soon after a cancellation the engine has stopped sampling."""
GONE_SECONDS: Final = 5.0
"""So soon after its task's end all processes of the harness are gone: they are asked first, and killed after 2 s."""


async def meddle(at: Site, case: Case, task_id: str) -> list[str]:
    """Do what the case wants; return what went wrong."""
    if case.meddle is None:
        return []
    await at.engine.waiting(case.meddle, seconds=case.limit_seconds)
    if case.meddle == "cancel":
        return await _cancel(at, task_id)
    await _kill(at)
    at.engine.go(case.meddle, None)
    return []


async def _kill(at: Site) -> None:
    """End the gateway; return once the engine has seen that its client is gone, and another gateway is coming."""
    ended = len(at.engine.ledger)
    at.gateway.tell(at.kill)
    while len(at.engine.ledger) == ended:  # noqa: ASYNC110 - the engine writes it down, and tells nobody
        await asyncio.sleep(POLL_SECONDS)
    if at.kill is signal.SIGKILL:
        await at.gateway.start()


async def _cancel(at: Site, task_id: str) -> list[str]:
    """Cancel the task, and see the sampling stop."""
    await at.client.cancel(task_id)
    asked = time.monotonic()
    while at.engine.sampling:  # noqa: ASYNC110 - the engine counts, and tells nobody
        await asyncio.sleep(POLL_SECONDS)
    after = time.monotonic() - asked
    return [f"the engine sampled for {after:.1f} s after the cancellation"] if after > STOPPED_SECONDS else []


async def all_gone(task_id: str) -> list[str]:
    """Return what is wrong where processes of a task that has ended live on."""
    try:
        async with asyncio.timeout(GONE_SECONDS):
            while _living(task_id):  # noqa: ASYNC110 - the kernel tells nobody
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        return [f"{_living(task_id)} processes of the harness live on"]
    return []


def _living(task_id: str) -> int:
    """Return how many processes have the session's folder in their environment."""
    found = 0
    for environment in Path("/proc").glob("[0-9]*/environ"):
        try:
            found += task_id.encode() in environment.read_bytes()
        except OSError:
            continue
    return found
