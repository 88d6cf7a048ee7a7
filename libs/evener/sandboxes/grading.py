"""Harbor's grading contract in a fresh sandbox: task files, the agent's changes, then the tests, then the reward they write.

The exit status of the tests is recorded and ignored; a reward that is missing is missing, not zero.
"""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from evener.sandboxes.port import TESTS, VERIFIER_LOGS, WORKDIR, Changes, NotAFile, Process, Program, Sandbox, Sandboxes


class Grading(Struct, frozen=True, kw_only=True):
    """What to grade."""

    name: str
    """Of the sandbox: unique among the open ones of its backend."""
    files: Path | None
    """The task's own files, for the working directory. None: it has none."""
    tests: Path
    """The task's `tests` folder, with `test.sh` in it."""
    changes: Changes | None = None
    """What the agent left. None: nothing."""
    workdir: str = WORKDIR
    environment: Mapping[str, str] = {}
    """The verifier's variables."""
    seconds: float = 600.0
    """The verifier's time limit."""


class Graded(Struct, kw_only=True):
    """What the tests left. Raw: what it is worth is the grader's business. Filled as the grading goes on: it says how far it came."""

    exit_code: int | None = None
    """Of `test.sh`. None: it was not started, the time limit ended it, or somebody called the grading off."""
    timed_out: bool = False
    """The verifier's own time limit ended it."""
    reward_json: bytes | None = None
    """`/logs/verifier/reward.json`. None: not written."""
    reward_text: bytes | None = None
    """`/logs/verifier/reward.txt`. None: not written."""
    unread: str | None = None
    """Why a reward that is there was not read: it is a link, a pipe, a folder, or too large. None: all that is there was read."""
    output: bytes | None = None
    """What the tests printed, stdout and stderr together, cut as `Program.log_bytes` says. None: they were not started."""
    seconds: float = 0.0
    """That the tests ran."""


async def grade(sandboxes: Sandboxes, grading: Grading, graded: Graded | None = None) -> Graded:
    """Run the tests on a fresh copy of the task with the changes applied. Raises SandboxError; `graded` then says how far it came."""
    graded = graded or Graded()
    async with sandboxes.open(grading.name, workdir=grading.workdir) as sandbox:
        if grading.files is not None:
            await sandbox.bring(grading.files, grading.workdir)
        if grading.changes is not None:
            await sandbox.apply(grading.changes)
        await sandbox.bring(grading.tests, TESTS)
        test = ("sh", "-c", 'chmod +x "$0" && "$0"', sandbox.inside(f"{TESTS}/test.sh"))
        process = await sandbox.start(Program(argv=test, environment=grading.environment))
        began = time.monotonic()
        try:
            graded.exit_code = await _within(process, grading.seconds)
            graded.timed_out = graded.exit_code is None
        finally:
            graded.output, graded.seconds = process.log(), time.monotonic() - began
        await _read_rewards(sandbox, graded)
    return graded


async def _read_rewards(sandbox: Sandbox, graded: Graded) -> None:
    try:
        graded.reward_json = await sandbox.read(f"{VERIFIER_LOGS}/reward.json")
        graded.reward_text = await sandbox.read(f"{VERIFIER_LOGS}/reward.txt")
    except NotAFile as cause:
        graded.unread = str(cause.args[0])


async def _within(process: Process, seconds: float) -> int | None:
    try:
        async with asyncio.timeout(seconds):
            return await process.wait()
    except TimeoutError:
        await process.end()
        return None
