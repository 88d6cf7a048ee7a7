"""Runs a task's tests in a fresh sandbox with the agent's changes. What they left is for a grader to judge."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import msgspec

from evener.blobs.port import Blobs
from evener.graders.port import GraderError, GraderRefused, GradingContext
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
QUOTED_BYTES: Final = 16 << 10
"""The end of the output in which they are searched: there may be a million lines before."""
MAX_NOT_TAKEN: Final = 100
"""The changes that were not taken over are named up to this number."""

T = TypeVar("T")


def as_it_is(work: Grading) -> Grading:
    """Return the grading unchanged: `tests/test.sh` is run."""
    return work


async def tested(context: GradingContext, read: Callable[[Task], T], change: Callable[[Grading], Grading]) -> tuple[GradingOutcome, T]:
    """Run the tests of the session's task, as `change` says; return what they left, and what `read` returns of the task's files.

    The files that they left are evidence also if the grading fails. Raises GraderError, GraderRefused, BlobError.
    """
    async with task_of(context) as task:
        found = await asyncio.to_thread(read, task)
        return await run_tests(context, task, change), found


@asynccontextmanager
async def task_of(context: GradingContext) -> AsyncIterator[Task]:
    """Yield the session's task with its files. Raises GraderError, GraderRefused, BlobError; within the block, TaskError is refused too."""
    ref = context.trajectory.spec.task
    if ref is None:
        msg = f"grader `{context.trajectory.spec.grader.name}` needs a task with tests; this session is a recording without one"
        raise GraderRefused(msg)
    async with temporary_folder("evener-grading-") as folder:
        try:
            yield await asyncio.to_thread(unpacked, await context.blobs.get(ref.archive), folder)
        except TaskError as cause:
            raise GraderRefused(str(cause.args[0])) from cause


async def run_tests(context: GradingContext, task: Task, change: Callable[[Grading], Grading], step: str = "") -> GradingOutcome:
    """Run the tests of a task or of one of its steps (`step`: its prefix of artifacts and evidence). Raises GraderError, BlobError."""
    if context.sandboxes is None:
        msg = f"this evaluator has no `{context.trajectory.spec.harness.sandbox}` sandboxes, in which the session ran"
        raise GraderRefused(msg)
    left, tests = GradingOutcome(), task.verification
    work = Grading(
        name=f"{context.name}{step.rstrip('/').replace('/', '-')}",
        files=task.environment,
        has_task_files=tests.has_task_files,
        tests=tests.tests,
        changes=await changes_of(context.trajectory, context.blobs, step),
        sandbox=tests.sandbox,
        agent_sandbox=task.sandbox,
        healthcheck=tests.healthcheck,
        handover=tests.handover,
        environment=tests.env,
        seconds=tests.seconds,
    )
    try:
        await grading.grade(context.sandboxes, change(work), left)
    except SandboxError as cause:
        raise GraderError(str(cause)) from cause
    finally:
        context.evidence.update({f"{step}{name}": content for name, content in evidence_of(left).items()})
    return left


def evidence_of(left: GradingOutcome) -> dict[str, bytes]:
    """Return the files that a grading left, however far it got."""
    ended: dict[str, object] = {
        "exit_code": left.exit_code,
        "timed_out": left.timed_out,
        "seconds": round(left.seconds, 3),
        "unread": left.unread,
    }
    if left.guarded:
        ended["not_taken_over"] = left.guarded[:MAX_NOT_TAKEN]
    if left.unnamed is not None:
        ended["not_named_by_the_tests"] = left.unnamed
    files = {OUTPUT: left.output, "reward.json": left.reward_json, "reward.txt": left.reward_text, GRADING_FILE: msgspec.json.encode(ended)}
    return {name: content for name, content in files.items() if content is not None}


def last_lines(output: bytes | None) -> str:
    """Return the end of the tests' output, as a clause for a message."""
    end = (output or b"").rstrip()[-QUOTED_BYTES:]
    lines = [line for line in end.decode(errors="replace").splitlines() if line.strip()]
    if not lines:
        return "it printed nothing"
    return "its last lines: " + "\n".join(lines[-LAST_LINES:])[-LAST_CHARACTERS:]


def ending(left: GradingOutcome) -> str:
    """Return how the tests ended, as a clause for a message."""
    return "ran out of time" if left.timed_out else f"exited with {left.exit_code}"


async def changes_of(trajectory: TrajectoryBuilt, blobs: Blobs, step: str = "") -> Changes | None:
    """Return what the agent changed, by the end of a step (`step`: its prefix). None: no harness ran in a sandbox.

    Raises GraderRefused if the changes were not kept, BlobError.
    """
    if trajectory.exit is None or not trajectory.exit.artifacts:
        return None
    refs = {artifact.name: artifact.blob for artifact in trajectory.exit.artifacts}
    changes, removals = f"{step}{CHANGES}", f"{step}{REMOVED}"
    if changes not in refs:
        msg = f"the session left no {changes} to test: {trajectory.exit.detail or 'no reason was given'}"
        raise GraderRefused(msg)
    archive = await blobs.get(refs[changes])
    removed = json.loads(await blobs.get(refs[removals])) if removals in refs else ()  # names need not be UTF-8
    return Changes(archive=archive, removed=tuple(removed))
