"""Makes a sandbox ready for a step of its task: the step's files, their set-up, its health check."""

from typing import Final

from evener.sandboxes.completion import ProgramFailed, complete
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
    program = Program(argv=("sh", "-c", f"exec $(command -v bash || echo sh) ./{SETUP}"), environment=step.env)
    try:
        await complete(sandbox, program, SETUP_SECONDS, f"{SETUP} of step {step.name!r}")
    except ProgramFailed as cause:
        raise StepUnready(*cause.args) from cause
