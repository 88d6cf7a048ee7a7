"""Stands in for an agent: makes the session of an oracle, which follows the task's solution, or of an agent that does nothing."""

import asyncio
import json
import time
from pathlib import Path
from typing import Final

from msgspec import Struct

from evener.blobs.port import Blobs
from evener.graders.forger import forging
from evener.graders.task_tests import CHANGES, REMOVED
from evener.proto.reasons import ExitCause, TerminationReason
from evener.proto.sessions import Artifact
from evener.proto.spec import HarnessSpec, Purpose, SessionSpec, TaskRef
from evener.proto.trajectories import HarnessExit, TrajectoryBuilt
from evener.sandboxes.cleaning import clean, leaks
from evener.sandboxes.health import wait_until_healthy
from evener.sandboxes.port import SOLUTION, ChangeLimits, Program, Sandbox, Sandboxes
from evener.sandboxes.staging import StepUnready, stage
from evener.tasks.directory import ANSWER, SOLUTION_FOLDER, SOLVE, STEP_FILES, Task
from evener.tasks.tables import Cleaning
from evener.tasks.verification import TESTS_FOLDER

ORACLE: Final = "oracle"
NO_OP: Final = "no_op"
FORGER: Final = "forger"
"""Works like the oracle, but what it leaves are programs that write their own reward."""
NOTHING_TO_FORGE: Final = "the oracle leaves no program"
SOLVE_SECONDS: Final = 1800.0
"""The time limit of an oracle whose task has none for its agent."""


class PreparedTask(Struct, frozen=True, kw_only=True, eq=False):
    """A packed task, and the sandboxes in which stand-ins work on it."""

    task: Task
    ref: TaskRef
    """The task's archive in `blobs`."""
    backend: str
    sandboxes: Sandboxes
    """The backend of that name."""
    blobs: Blobs


class StandInWork(Struct, frozen=True, kw_only=True):
    """The files and the message that a stand-in left."""

    trajectory: TrajectoryBuilt
    output: bytes = b""
    """What `solve.sh` printed."""
    problem: str | None = None
    """Why the solution may not have been carried out. None: nothing speaks against it."""


def has_oracle(task: Task) -> bool:
    """Return whether the solution of a task is known."""
    return any(map(_is_solved_by_script, task.steps or (task,))) or answer_of(task) is not None


def answer_of(task: Task) -> str | None:
    """Return the answer that solves a task: of `solution/answer.txt`, otherwise the expected one. None: it is not known."""
    if task.solution is not None and (file := task.solution / ANSWER).is_file():
        return file.read_text(encoding="utf-8")
    options = task.grader.options
    return options.get("expected") if task.grader.name == "answer" and options.get("match") != "regex" else None


async def stand_in_session(kind: str, prepared: PreparedTask, name: str) -> StandInWork:
    """Return the session of a stand-in: `ORACLE`, `NO_OP`, `FORGER`. Raises SandboxError, BlobError.

    Its artifacts are put into the blobs. `name` is unique among the open sandboxes.
    """
    task = prepared.task
    answer = await asyncio.to_thread(answer_of, task) if kind == ORACLE else None
    left, output, problems = None, b"", list[str]()
    if task.steps or task.verification.has_script or _is_solved_by_script(task):
        async with prepared.sandboxes.open(name, task.sandbox) as sandbox:
            if task.environment is not None:
                await sandbox.bring(task.environment, sandbox.workdir)
            if task.clean is not None:
                await clean(sandbox, task.clean)
            if task.healthcheck is not None:
                await wait_until_healthy(sandbox, task.healthcheck)
            await sandbox.settle()
            kept: dict[str, bytes] = {}
            for step in task.steps or (task,):
                if task.steps and (unready := await _unready(sandbox, step, is_first=not kept)) is not None:
                    problems.append(unready)
                    break
                if kind != NO_OP and step.solution is not None and _is_solved_by_script(step):
                    printed, problem = await _solve(step, step.solution, sandbox)
                    output += printed
                    problems += [problem] if problem else []
                changes = await sandbox.changes(ChangeLimits())
                prefix = STEP_FILES.format(step.name) if task.steps else ""
                archive = changes.archive
                if kind == FORGER:
                    forged = await asyncio.to_thread(forging, archive)
                    problems += [] if forged is not None else [NOTHING_TO_FORGE]
                    archive = forged or archive
                kept |= {f"{prefix}{CHANGES}": archive, f"{prefix}{REMOVED}": json.dumps(changes.removed).encode()}
        artifacts = tuple([Artifact(name=file, blob=await prepared.blobs.put(content)) for file, content in kept.items()])
        left = HarnessExit(cause=ExitCause.EXITED, exit_code=0, artifacts=artifacts)
    return StandInWork(trajectory=_session(prepared, kind, answer, left), output=output, problem="; ".join(problems) or None)


async def leaks_of(prepared: PreparedTask, name: str) -> tuple[str, ...]:
    """Return what in the task's sandbox gives an agent its tests or its solution, in words. Raises SandboxError."""
    task = prepared.task
    if task.clean is None and task.sandbox.image is None:
        return ()
    patches = await asyncio.to_thread(_patches, task.path)
    async with prepared.sandboxes.open(name, task.sandbox) as sandbox:
        if task.environment is not None:
            await sandbox.bring(task.environment, sandbox.workdir)
        if task.clean is not None:
            await clean(sandbox, task.clean)
        return await leaks(sandbox, task.clean or Cleaning(), patches)


def _patches(path: Path) -> dict[str, bytes]:
    """Return the patches of a task's tests and solution."""
    files = [file for folder in (TESTS_FOLDER, SOLUTION_FOLDER) for file in sorted((path / folder).glob("*.patch"))]
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in files}


async def _unready(sandbox: Sandbox, step: Task, *, is_first: bool) -> str | None:
    """Return why a step cannot begin after what was done before it. None: it is staged."""
    try:
        await stage(sandbox, step)
    except StepUnready as reason:
        if is_first:
            raise
        return str(reason.args[0])
    return None


async def _solve(task: Task, solution: Path, sandbox: Sandbox) -> tuple[bytes, str | None]:
    await sandbox.write({f"{SOLUTION}/.evener": b""})  # a container has no such folder, and files are brought into folders
    await sandbox.bring(solution, SOLUTION)
    script = ("sh", "-c", 'chmod +x "$0" && "$0"', sandbox.inside(f"{SOLUTION}/{SOLVE}"))
    process = await sandbox.start(Program(argv=script, environment=task.env | task.solution_env))
    seconds = task.agent_seconds or SOLVE_SECONDS
    try:
        async with asyncio.timeout(seconds):
            code = await process.wait()
    except TimeoutError:
        await process.end()
        return process.log(), f"solution/{SOLVE} took longer than {seconds:g} s"
    return process.log(), f"solution/{SOLVE} exited with {code}" if code else None


def _is_solved_by_script(task: Task) -> bool:
    return task.solution is not None and (task.solution / SOLVE).is_file()


def _session(prepared: PreparedTask, kind: str, answer: str | None, left: HarnessExit | None) -> TrajectoryBuilt:
    spec = SessionSpec(
        run_id=kind,
        task_id=kind,
        group_id=kind,
        group_size=1,
        index=0,
        purpose=Purpose.EVAL,
        task=prepared.ref,
        harness=HarnessSpec(name=kind, sandbox=prepared.backend),
        policy=kind,
        grader=prepared.task.grader,
    )
    return TrajectoryBuilt(
        session_id=kind,
        attempt=1,
        spec=spec,
        termination_reason=TerminationReason.FINISHED,
        exit=left,
        answer=answer,
        rule=0,
        rows_digest="0" * 64,
        sealed_at=time.time(),
    )
