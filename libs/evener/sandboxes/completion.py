"""Runs a program in a sandbox to its end, which must be a good one."""

import asyncio
from typing import Final

from evener.sandboxes.port import Program, Sandbox, SandboxError

QUOTED_LOG_BYTES: Final = 500


class ProgramFailed(SandboxError):
    """Read what the program wrote last: the task's own command, or what the agent left for it, made it fail."""


async def complete(sandbox: Sandbox, program: Program, seconds: float, what: str) -> None:
    """Run a program. Raises ProgramFailed, naming it as `what`, if it fails or takes longer than `seconds`, and SandboxError."""
    process = await sandbox.start(program)
    try:
        async with asyncio.timeout(seconds):
            code = await process.wait()
    except TimeoutError as cause:
        await process.end()
        msg = f"{what} took longer than {seconds:g} s"
        raise ProgramFailed(msg) from cause
    if code:
        msg = f"{what} exited with {code}: {process.log()[-QUOTED_LOG_BYTES:].decode(errors='replace').strip()}"
        raise ProgramFailed(msg)
