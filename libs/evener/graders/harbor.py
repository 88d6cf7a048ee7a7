"""Harbor's contract: runs the task's `tests/test.sh` in a fresh sandbox with the agent's changes, then reads the reward that it wrote.

`reward.json` (an object of finite numbers) is read first, then `reward.txt` (one finite number). A reward that is empty, missing or
unreadable is no reward, never 0. The exit code of the tests is kept as evidence and ignored.
"""

import asyncio
import json
from pathlib import Path
from typing import Final

import msgspec

from evener.blobs.port import Blobs
from evener.graders.port import Grade, GraderError, GraderRefused, GradingContext, graded
from evener.proto.spec import TaskRef
from evener.proto.trajectories import TrajectoryBuilt
from evener.runtime.folders import temporary_folder
from evener.sandboxes import grading
from evener.sandboxes.port import VERIFIER_LOGS, Changes, SandboxError
from evener.tasks.errors import TaskError
from evener.tasks.pack import unpacked

CHANGES: Final = "changes.tar"
REMOVED: Final = "removed.json"
OUTPUT: Final = "test-stdout.txt"
GRADING_FILE: Final = "grading.json"
LAST_LINES: Final = 10
"""The number of output lines quoted in the reason why there is no reward."""
LAST_CHARACTERS: Final = 1000

_numbers: Final = msgspec.json.Decoder(dict[str, float])


async def grade(context: GradingContext) -> Grade:
    """Grade as `harbor`."""
    ref = context.trajectory.spec.task
    if ref is None:
        msg = "grader `harbor` needs a task with tests; this session is a recording without one"
        raise GraderRefused(msg)
    left = grading.GradingOutcome()
    try:
        async with temporary_folder("evener-grading-") as folder:
            await _grade(context, ref, folder, left)
    finally:
        context.evidence.update(evidence_of(left))
    return grade_of(left)


async def _grade(context: GradingContext, ref: TaskRef, folder: Path, left: grading.GradingOutcome) -> None:
    if context.sandboxes is None:
        msg = f"this evaluator has no `{context.trajectory.spec.harness.sandbox}` sandboxes, in which the session ran"
        raise GraderRefused(msg)
    try:
        task = await asyncio.to_thread(unpacked, await context.blobs.get(ref.archive), folder)
        if task.tests is None:
            msg = f"task {task.name} has no tests/test.sh"
            raise GraderRefused(msg)
        work = grading.Grading(
            name=context.name,
            files=task.environment,
            tests=task.tests,
            changes=await _changes(context.trajectory, context.blobs),
            sandbox=task.grading_sandbox,
            environment=task.verifier_env,
            seconds=task.verifier_seconds,
        )
        await grading.grade(context.sandboxes, work, left)
    except TaskError as cause:
        raise GraderRefused(str(cause.args[0])) from cause
    except SandboxError as cause:
        raise GraderError(str(cause)) from cause


def evidence_of(left: grading.GradingOutcome) -> dict[str, bytes]:
    """Return the files that a grading left, however far it got."""
    ended = {"exit_code": left.exit_code, "timed_out": left.timed_out, "seconds": round(left.seconds, 3), "unread": left.unread}
    files = {OUTPUT: left.output, "reward.json": left.reward_json, "reward.txt": left.reward_text, GRADING_FILE: msgspec.json.encode(ended)}
    return {name: content for name, content in files.items() if content is not None}


def grade_of(left: grading.GradingOutcome) -> Grade:
    """Return the grade that the tests wrote. Raises GraderError, with the end of their output, if they wrote none."""
    try:
        return graded(_rewards(left))
    except GraderError as cause:
        msg = f"{cause.what}; {last_lines(left.output)}"
        raise GraderError(msg) from cause


def _rewards(left: grading.GradingOutcome) -> dict[str, float]:
    if left.unread is not None:
        raise GraderError(left.unread)
    if left.reward_json is not None:
        return _read_json(left.reward_json)
    if left.reward_text is not None:
        return {"reward": _read_text(left.reward_text)}
    how = "ran out of time" if left.timed_out else f"exited with {left.exit_code}"
    msg = f"tests/test.sh {how} and wrote neither {VERIFIER_LOGS}/reward.json nor reward.txt"
    raise GraderError(msg)


def last_lines(output: bytes | None) -> str:
    """Return the end of the tests' output, as a clause for a message."""
    lines = [line for line in (output or b"").decode(errors="replace").splitlines() if line.strip()]
    if not lines:
        return "it printed nothing"
    return "its last lines: " + "\n".join(lines[-LAST_LINES:])[-LAST_CHARACTERS:]


def _read_json(data: bytes) -> dict[str, float]:
    try:
        return _numbers.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError) as cause:
        msg = f"reward.json is not an object of numbers: {cause}"
        raise GraderError(msg) from cause


def _read_text(data: bytes) -> float:
    try:
        return float(data.decode())
    except ValueError as cause:
        msg = f"reward.txt is not a number: {data[:40]!r}"
        raise GraderError(msg) from cause


async def _changes(trajectory: TrajectoryBuilt, blobs: Blobs) -> Changes | None:
    """Return what the agent changed. None: no harness ran in a sandbox. Raises GraderRefused if the changes were not kept."""
    if trajectory.exit is None or not trajectory.exit.artifacts:
        return None
    refs = {artifact.name: artifact.blob for artifact in trajectory.exit.artifacts}
    if CHANGES not in refs:
        msg = f"the session left no {CHANGES} to test: {trajectory.exit.detail or 'no reason was given'}"
        raise GraderRefused(msg)
    archive = await blobs.get(refs[CHANGES])
    removed = json.loads(await blobs.get(refs[REMOVED])) if REMOVED in refs else ()  # names need not be UTF-8
    return Changes(archive=archive, removed=tuple(removed))
