"""Harbor's grading contract in a fresh sandbox: task files, the agent's changes, then the tests, then the reward they write.

The exit status of the tests is recorded and ignored; a reward that is missing is missing, not zero.
"""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from evener.sandboxes.port import TESTS, VERIFIER_LOGS, WORKDIR, Changes, Process, Program, Sandboxes


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


class Graded(Struct, frozen=True, kw_only=True):
    """What the tests left. Raw: what it is worth is the grader's business."""

    exit_code: int | None
    """Of `test.sh`. None: the time limit ended it."""
    reward_json: bytes | None
    """`/logs/verifier/reward.json`. None: not written."""
    reward_text: bytes | None
    """`/logs/verifier/reward.txt`. None: not written."""
    output: bytes
    """What the tests printed, cut as `Program.log_bytes` says."""
    seconds: float


async def grade(sandboxes: Sandboxes, grading: Grading) -> Graded:
    """Run the tests on a fresh copy of the task with the changes applied. Raises SandboxError."""
    async with sandboxes.open(grading.name, workdir=grading.workdir) as sandbox:
        if grading.files is not None:
            await sandbox.bring(grading.files, grading.workdir)
        if grading.changes is not None:
            await sandbox.apply(grading.changes)
        await sandbox.bring(grading.tests, TESTS)
        began = time.monotonic()
        test = ("sh", "-c", 'chmod +x "$0" && "$0"', sandbox.inside(f"{TESTS}/test.sh"))
        process = await sandbox.start(Program(argv=test, environment=grading.environment))
        exit_code = await _within(process, grading.seconds)
        return Graded(
            exit_code=exit_code,
            reward_json=await sandbox.read(f"{VERIFIER_LOGS}/reward.json"),
            reward_text=await sandbox.read(f"{VERIFIER_LOGS}/reward.txt"),
            output=process.log(),
            seconds=time.monotonic() - began,
        )


async def _within(process: Process, seconds: float) -> int | None:
    try:
        async with asyncio.timeout(seconds):
            return await process.wait()
    except TimeoutError:
        await process.end()
        return None
