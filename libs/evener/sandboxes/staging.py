"""Makes a sandbox ready for a step of its task: the step's files, their set-up, its health check."""

import asyncio
from typing import Final

from evener.sandboxes.health import Unhealthy, wait_until_healthy
from evener.sandboxes.port import Program, Sandbox, SandboxError
from evener.tasks.directory import Task

SETUP: Final = "setup.sh"
SETUP_SECONDS: Final = 600.0


class StepUnready(SandboxError):
    """The agent's earlier work, or the step's own `setup.sh`, keeps the step from being set up. If it is the first step, mend the task."""


async def stage(sandbox: Sandbox, step: Task) -> None:
    """Bring a step's files into the working directory and run their `setup.sh`. Raises StepUnready, SandboxError."""
    if step.staged is not None:
        await sandbox.bring(step.staged, sandbox.workdir)
        if (step.staged / SETUP).is_file():
            await _set_up(sandbox, step)
    if step.healthcheck is not None:
        try:
            await wait_until_healthy(sandbox, step.healthcheck)
        except Unhealthy as cause:
            msg = f"step {step.name!r}: {cause.args[0]}"
            raise StepUnready(msg) from cause


async def _set_up(sandbox: Sandbox, step: Task) -> None:
    process = await sandbox.start(Program(argv=("sh", "-c", f"exec $(command -v bash || echo sh) ./{SETUP}"), environment=step.env))
    try:
        async with asyncio.timeout(SETUP_SECONDS):
            code = await process.wait()
    except TimeoutError as cause:
        await process.end()
        msg = f"{SETUP} of step {step.name!r} took longer than {SETUP_SECONDS:g} s"
        raise StepUnready(msg) from cause
    if code:
        msg = f"{SETUP} of step {step.name!r} exited with {code}: {process.log()[-500:].decode(errors='replace').strip()}"
        raise StepUnready(msg)
