"""Waits until a sandbox is well, by the health check that its task declares."""

import asyncio
import time

from evener.sandboxes.port import Program, Sandbox, SandboxError
from evener.tasks.tables import Healthcheck


class Unhealthy(SandboxError):
    """The task's health check fails. Correct its command, or give the sandbox more time (`start_period_sec`)."""


async def wait_until_healthy(sandbox: Sandbox, check: Healthcheck) -> None:
    """Run the check until it succeeds. Raises Unhealthy after its last try, SandboxError."""
    began, failures = time.monotonic(), 0
    while True:
        starting = time.monotonic() - began < check.start_period_sec
        said = await _tried(sandbox, check)
        if said is None:
            return
        if not starting:
            failures += 1
            if failures >= check.retries:
                msg = f"health check {check.command!r} failed {failures} times: {said}"
                raise Unhealthy(msg)
        await asyncio.sleep(check.start_interval_sec if starting else check.interval_sec)


async def _tried(sandbox: Sandbox, check: Healthcheck) -> str | None:
    """Return why a try failed. None: it succeeded."""
    process = await sandbox.start(Program(argv=("sh", "-c", check.command)))
    try:
        async with asyncio.timeout(check.timeout_sec):
            code = await process.wait()
    except TimeoutError:
        await process.end()
        return f"no end within {check.timeout_sec:g} s"
    return f"exit code {code}; {process.log()[-500:].decode(errors='replace').strip()}" if code else None
