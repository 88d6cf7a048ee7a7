"""Harbor's contract: the task's `tests/test.sh` in a fresh sandbox with the agent's changes, then the reward that it wrote.

`reward.json` (an object of finite numbers) is read first, then `reward.txt` (one finite number). Empty, missing or unreadable is
no reward, never 0. The exit status of the tests is kept as evidence and means nothing.
"""

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from evener.blobs.port import BlobError, Blobs, NotRead
from evener.graders.port import Context, Grade, GraderError, GraderRefused, graded
from evener.proto.spec import TaskRef
from evener.proto.trajectories import TrajectoryBuilt
from evener.sandboxes import grading
from evener.sandboxes.port import WORKDIR, Changes, SandboxError
from evener.tasks import directory, pack
from evener.tasks.errors import TaskError

CHANGES: Final = "changes.tar"
REMOVED: Final = "removed.json"
OUTPUT: Final = "test-stdout.txt"

_numbers: Final = msgspec.json.Decoder(dict[str, float])


class Harbor:
    """The grader `harbor`."""

    async def grade(self, context: Context) -> Grade:
        ref = context.trajectory.spec.task
        if ref is None:
            msg = "grader `harbor` needs a task with tests; this session is a recording without one"
            raise GraderRefused(msg)
        with tempfile.TemporaryDirectory(prefix="evener-grading-") as folder:
            return await _grade(context, ref, Path(folder))


async def _grade(context: Context, ref: TaskRef, folder: Path) -> Grade:
    try:
        task = await _unpacked(context.blobs, ref, folder)
        if task.tests is None:
            msg = f"task {task.name} has no tests/test.sh"
            raise GraderRefused(msg)
        work = grading.Grading(
            name=context.name,
            files=task.environment,
            tests=task.tests,
            changes=await _changes(context.trajectory, context.blobs),
            workdir=task.workdir or WORKDIR,
            environment=task.verifier_env,
            seconds=task.verifier_seconds,
        )
        left = await grading.grade(context.sandboxes, work)
    except TaskError as cause:
        raise GraderRefused(str(cause.args[0])) from cause
    except NotRead:
        raise  # nobody's fault, and no try of the grader
    except (BlobError, SandboxError) as cause:
        raise GraderError(str(cause)) from cause
    return judge(left)


def judge(left: grading.Graded) -> Grade:
    """Return the grade that the tests wrote. Raises GraderError, with their output as evidence, where they wrote none."""
    timing = msgspec.json.encode({"exit_code": left.exit_code, "seconds": round(left.seconds, 3)})
    evidence = {OUTPUT: left.output, "grading.json": timing}
    if left.reward_json is not None:
        return graded(_read_json(left.reward_json, evidence), evidence)
    if left.reward_text is not None:
        return graded({"reward": _read_text(left.reward_text, evidence)}, evidence)
    how = "ran out of time" if left.exit_code is None else f"exited with {left.exit_code}"
    msg = f"tests/test.sh {how} and wrote neither reward.json nor reward.txt"
    raise GraderError(msg, evidence=evidence)


def _read_json(data: bytes, evidence: dict[str, bytes]) -> dict[str, float]:
    try:
        return _numbers.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError) as cause:
        msg = f"reward.json is not an object of numbers: {cause}"
        raise GraderError(msg, evidence=evidence) from cause


def _read_text(data: bytes, evidence: dict[str, bytes]) -> float:
    try:
        return float(data.decode())
    except ValueError as cause:
        msg = f"reward.txt is not a number: {data[:40]!r}"
        raise GraderError(msg, evidence=evidence) from cause


async def _unpacked(blobs: Blobs, ref: TaskRef, folder: Path) -> directory.Task:
    data = await blobs.get(ref.archive)
    await asyncio.to_thread(pack.unpack, data, folder)
    return await asyncio.to_thread(directory.load, folder)


async def _changes(trajectory: TrajectoryBuilt, blobs: Blobs) -> Changes | None:
    """Return what the agent left. None: no harness ran in a sandbox. Raises GraderRefused where its changes were not kept."""
    if trajectory.exit is None or not trajectory.exit.artifacts:
        return None
    refs = {artifact.name: artifact.blob for artifact in trajectory.exit.artifacts}
    if CHANGES not in refs:
        msg = f"the session left no {CHANGES} to test: {trajectory.exit.detail or 'no reason was given'}"
        raise GraderRefused(msg)
    archive = await blobs.get(refs[CHANGES])
    removed = json.loads(await blobs.get(refs[REMOVED])) if REMOVED in refs else ()  # names need not be UTF-8
    return Changes(archive=archive, removed=tuple(removed))
