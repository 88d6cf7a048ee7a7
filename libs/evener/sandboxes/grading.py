"""Harbor's grading contract in a fresh sandbox: the task's files, the agent's changes, then the tests, then the reward that they write.

A separate verifier gets the artifacts of the agent instead of its changes. They are taken from a fresh copy of the agent's sandbox with its
changes, in which the collect hooks run first.

The exit code of the tests is recorded and ignored. A missing reward is missing, not zero.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from evener.proto.sandbox import SandboxSpec
from evener.sandboxes.guarded import apply_guarded
from evener.sandboxes.handover import artifacts_of
from evener.sandboxes.health import wait_until_healthy
from evener.sandboxes.port import TESTS, VERIFIER_LOGS, Changes, NotAFile, Process, Program, Sandbox, Sandboxes
from evener.tasks.tables import Handover, Healthcheck

REWARD_JSON: Final = "reward.json"
REWARD_TEXT: Final = "reward.txt"
MAX_TEST_BYTES: Final = 1 << 20
"""How much of each file of the tests is searched for these names."""


class Grading(Struct, frozen=True, kw_only=True):
    """The session to grade, with what its agent left."""

    name: str
    """The name of the sandbox, unique among the open ones of its backend."""
    files: Path | None
    """The task's own files, for the working directory. None: there are none."""
    tests: Sequence[Path]
    """The folders with the tests, later ones over earlier ones. They, or the image, hold `script`."""
    script: str = "test.sh"
    """The program to run, below the tests."""
    brought: Mapping[str, bytes] = {}
    """Files that are written beside the tests, by place."""
    log_bytes: int = 1 << 20
    """How much of the output is kept."""
    changes: Changes | None = None
    """What the agent changed. None: nothing."""
    sandbox: SandboxSpec = SandboxSpec()
    has_task_files: bool = True
    """Whether the verifier's sandbox begins with `files`."""
    healthcheck: Healthcheck | None = None
    handover: Handover | None = None
    """What a separate verifier gets of the changes. None: all."""
    agent_sandbox: SandboxSpec = SandboxSpec()
    """The agent's sandbox, for a handover."""
    environment: Mapping[str, str] = {}
    """The environment variables of the verifier."""
    seconds: float = 600.0
    """The time limit of the verifier."""


class GradingOutcome(Struct, kw_only=True):
    """The output of the tests, uninterpreted: the grader turns it into a reward. It is filled as the grading proceeds."""

    exit_code: int | None = None
    """The exit code of `test.sh`. None: it was not started, reached the time limit, or the grading was cancelled."""
    timed_out: bool = False
    """Whether the verifier reached its time limit."""
    reward_json: bytes | None = None
    """The content of `/logs/verifier/reward.json`. None: it was not written."""
    reward_text: bytes | None = None
    """The content of `/logs/verifier/reward.txt`. None: it was not written."""
    unread: str | None = None
    """Why an existing reward was not read: it is a link, a pipe, a folder, or too large. None: everything was read."""
    output: bytes | None = None
    """What the tests printed, stdout and stderr together, cut as `Program.log_bytes` says. None: the tests were not started."""
    seconds: float = 0.0
    """How long the tests ran."""
    guarded: tuple[str, ...] = ()
    """The agent's changes to what grades it, which were not taken over."""
    unnamed: str | None = None
    """The reward file that was there although the tests name only the other one: it was not read. None: there was none."""


async def grade(sandboxes: Sandboxes, grading: Grading, graded: GradingOutcome | None = None) -> GradingOutcome:
    """Run the tests on a fresh copy of the task with the changes applied. Raises SandboxError; `graded` then shows how far it got."""
    graded = graded or GradingOutcome()
    changes = grading.changes if grading.handover is None else await _handed_over(sandboxes, grading, grading.handover)
    async with sandboxes.open(grading.name, grading.sandbox) as sandbox:
        if grading.files is not None and grading.has_task_files:
            await sandbox.bring(grading.files, sandbox.workdir)
        if changes is not None:
            graded.guarded = await apply_guarded(sandbox, changes)
        for folder in grading.tests:
            await sandbox.bring(folder, TESTS)
        await sandbox.write(grading.brought)
        if grading.healthcheck is not None:
            await wait_until_healthy(sandbox, grading.healthcheck)
        test = ("sh", "-c", 'chmod +x "$0" && "$0"', sandbox.inside(f"{TESTS}/{grading.script}"))
        await sandbox.check_room()
        process = await sandbox.start(Program(argv=test, environment=grading.environment, log_bytes=grading.log_bytes))
        began = time.monotonic()
        try:
            graded.exit_code = await _within(process, grading.seconds)
            graded.timed_out = graded.exit_code is None
        finally:
            graded.output, graded.seconds = process.log(), time.monotonic() - began
        await sandbox.check_room()
        await _read_rewards(sandbox, graded)
    _leave_out(graded, await asyncio.to_thread(_named, grading.tests))
    return graded


async def _handed_over(sandboxes: Sandboxes, grading: Grading, handover: Handover) -> Changes:
    """Return the artifacts of an agent, from a copy of its sandbox."""
    async with sandboxes.open(f"{grading.name}-agent", grading.agent_sandbox) as sandbox:
        if grading.files is not None:
            await sandbox.bring(grading.files, sandbox.workdir)
        if grading.changes is not None:
            await sandbox.apply(grading.changes)
        return await artifacts_of(sandbox, handover)


async def _read_rewards(sandbox: Sandbox, graded: GradingOutcome) -> None:
    try:
        graded.reward_json = await sandbox.read(f"{VERIFIER_LOGS}/{REWARD_JSON}")
        graded.reward_text = await sandbox.read(f"{VERIFIER_LOGS}/{REWARD_TEXT}")
    except NotAFile as cause:
        graded.unread = str(cause.args[0])


def _named(tests: Sequence[Path]) -> set[str]:
    """Return which reward files the files of tests name. Blocks."""
    found = set[str]()
    for path in (path for folder in tests for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            content = file.read(MAX_TEST_BYTES)
        found |= {name for name in (REWARD_JSON, REWARD_TEXT) if name.encode() in content}
    return found


def _leave_out(graded: GradingOutcome, named: set[str]) -> None:
    """Drop a reward that the tests do not write: a program of the agent's that they ran may have."""
    if named == {REWARD_TEXT} and graded.reward_json is not None:
        graded.reward_json, graded.unnamed = None, REWARD_JSON
    elif named == {REWARD_JSON} and graded.reward_text is not None:
        graded.reward_text, graded.unnamed = None, REWARD_TEXT


async def _within(process: Process, seconds: float) -> int | None:
    try:
        async with asyncio.timeout(seconds):
            return await process.wait()
    except TimeoutError:
        await process.end()
        return None
