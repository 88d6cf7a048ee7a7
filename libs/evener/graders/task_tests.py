"""Runs a task's tests in a fresh sandbox with the agent's changes. What they left is for a grader to judge."""

import asyncio
import json
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from evener.blobs.port import Blobs
from evener.graders.port import GraderError, GraderRefused, GradingContext
from evener.proto.spec import TaskRef
from evener.proto.trajectories import TrajectoryBuilt
from evener.runtime.folders import temporary_folder
from evener.sandboxes import grading
from evener.sandboxes.grading import Grading, GradingOutcome
from evener.sandboxes.port import Changes, SandboxError
from evener.tasks.directory import Task
from evener.tasks.errors import TaskError
from evener.tasks.pack import unpacked

CHANGES: Final = "changes.tar"
REMOVED: Final = "removed.json"
OUTPUT: Final = "test-stdout.txt"
GRADING_FILE: Final = "grading.json"
LAST_LINES: Final = 10
"""The number of output lines quoted in the reason why there is no reward."""
LAST_CHARACTERS: Final = 1000

T = TypeVar("T")


def as_it_is(work: Grading) -> Grading:
    """Return the grading unchanged: `tests/test.sh` is run."""
    return work


async def tested(context: GradingContext, read: Callable[[Task], T], change: Callable[[Grading], Grading]) -> tuple[GradingOutcome, T]:
    """Run the tests of the session's task, as `change` says; return what they left, and what `read` returns of the task's files.

    The files that they left are evidence also if the grading fails. Raises GraderError, GraderRefused, BlobError.
    """
    ref = context.trajectory.spec.task
    if ref is None:
        msg = f"grader `{context.trajectory.spec.grader.name}` needs a task with tests; this session is a recording without one"
        raise GraderRefused(msg)
    left = GradingOutcome()
    try:
        return left, await _run(context, ref, read, change, left)
    except TaskError as cause:
        raise GraderRefused(str(cause.args[0])) from cause
    except SandboxError as cause:
        raise GraderError(str(cause)) from cause
    finally:
        context.evidence.update(evidence_of(left))


async def _run(
    context: GradingContext, ref: TaskRef, read: Callable[[Task], T], change: Callable[[Grading], Grading], left: GradingOutcome
) -> T:
    if context.sandboxes is None:
        msg = f"this evaluator has no `{context.trajectory.spec.harness.sandbox}` sandboxes, in which the session ran"
        raise GraderRefused(msg)
    async with temporary_folder("evener-grading-") as folder:
        task = await asyncio.to_thread(unpacked, await context.blobs.get(ref.archive), folder)
        found = await asyncio.to_thread(read, task)
        work = Grading(
            name=context.name,
            files=task.environment,
            tests=task.path / "tests",
            changes=await _changes(context.trajectory, context.blobs),
            sandbox=task.grading_sandbox,
            environment=task.verifier_env,
            seconds=task.verifier_seconds,
        )
        await grading.grade(context.sandboxes, change(work), left)
    return found


def evidence_of(left: GradingOutcome) -> dict[str, bytes]:
    """Return the files that a grading left, however far it got."""
    ended = {"exit_code": left.exit_code, "timed_out": left.timed_out, "seconds": round(left.seconds, 3), "unread": left.unread}
    files = {OUTPUT: left.output, "reward.json": left.reward_json, "reward.txt": left.reward_text, GRADING_FILE: msgspec.json.encode(ended)}
    return {name: content for name, content in files.items() if content is not None}


def last_lines(output: bytes | None) -> str:
    """Return the end of the tests' output, as a clause for a message."""
    lines = [line for line in (output or b"").decode(errors="replace").splitlines() if line.strip()]
    if not lines:
        return "it printed nothing"
    return "its last lines: " + "\n".join(lines[-LAST_LINES:])[-LAST_CHARACTERS:]


def ending(left: GradingOutcome) -> str:
    """Return how the tests ended, as a clause for a message."""
    return "ran out of time" if left.timed_out else f"exited with {left.exit_code}"


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
