"""Checks tasks before anybody spends GPU time on them: the oracle must score 1, an agent that does nothing must not, and both twice."""

import asyncio
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final

from msgspec import Struct, structs

from evener.blobs.open import open_blobs
from evener.blobs.port import BlobError
from evener.graders.oracle import FORGER, NO_OP, NOTHING_TO_FORGE, ORACLE, PreparedTask, has_oracle, leaks_of, stand_in_session
from evener.graders.port import GraderError, GradingContext
from evener.graders.registry import grader_for
from evener.graders.task_tests import OUTPUT, last_lines
from evener.sandboxes.port import SandboxError, Sandboxes
from evener.tasks.directory import Task, load
from evener.tasks.errors import TaskError
from evener.tasks.pack import pack

SOLVED: Final = 1.0


class Fault(StrEnum):
    """The faults of a task."""

    UNREADABLE = "unreadable"
    """The directory is no good task, or no sandbox here gives what it needs."""
    ORACLE_FAILS = "oracle_fails"
    """The task's own solution did not score 1."""
    PASSES_WITHOUT_WORK = "passes_without_work"
    """An agent that does nothing scored 1."""
    FLAKY = "flaky"
    """The same work got different rewards."""
    LEAKS = "leaks"
    """The agent could find its tests or its solution in its sandbox."""
    NO_REWARD = "no_reward"
    """A grading gave no reward: sessions would count as ungraded."""


class Trial(Struct, frozen=True, kw_only=True):
    """One grading of a stand-in's session."""

    reward: float | None
    """The reward. None: there is none, and `detail` says why."""
    detail: str = ""


class Verdict(Struct, frozen=True, kw_only=True):
    """The result of a task's trials."""

    task: str
    path: str
    grader: str = ""
    sandbox: str = ""
    oracle: tuple[Trial, ...] = ()
    """The trials of the task's own solution. Empty: it has none."""
    no_op: tuple[Trial, ...] = ()
    """The trials of an agent that does nothing."""
    leaks: tuple[str, ...] = ()
    """What in the agent's sandbox gives it its tests or its solution."""
    forgeable: bool = False
    """Whether a program that writes its own reward got it, in the place of one that the oracle leaves: docs/rewards.md."""
    faults: tuple[Fault, ...] = ()
    """Empty: the task is sound, as far as it was tried."""
    detail: str = ""
    """The first reason, in words. Empty: there is no fault."""


def faults_of(oracle: tuple[Trial, ...], no_op: tuple[Trial, ...]) -> tuple[Fault, ...]:
    """Return what is wrong with a task whose trials ended so."""
    found = {
        Fault.FLAKY: any(len({trial.reward for trial in trials}) > 1 for trials in (oracle, no_op)),
        Fault.ORACLE_FAILS: any(trial.reward is not None and trial.reward != SOLVED for trial in oracle),
        Fault.PASSES_WITHOUT_WORK: any(trial.reward is not None and trial.reward >= SOLVED for trial in no_op),
        Fault.NO_REWARD: any(trial.reward is None for trial in (*oracle, *no_op)),
    }
    return tuple(fault for fault, is_found in found.items() if is_found)


class Validator:
    """Tries tasks in the sandboxes of this process, some at a time."""

    def __init__(self, sandboxes: Mapping[str, Sandboxes], *, times: int = 2, concurrency: int = 4) -> None:
        self._sandboxes = sandboxes
        self._times = times
        self._room = asyncio.Semaphore(concurrency)

    async def validate(self, path: Path, backend: str, number: int = 0) -> Verdict:
        """Try one task. `number` is unique among the tasks of this process: sandboxes are named after it."""
        async with self._room:
            try:
                task = await asyncio.to_thread(load, path)
                packed = await asyncio.to_thread(pack, path)
            except TaskError as error:
                return Verdict(task=path.name, path=str(path), faults=(Fault.UNREADABLE,), detail=str(error.args[0]))
            if backend not in self._sandboxes:
                said = f"this machine has no `{backend}` sandboxes"
                return Verdict(task=task.name, path=str(path), faults=(Fault.UNREADABLE,), detail=said)
            blobs = open_blobs("memory://")
            await blobs.put(packed.data)
            prepared = PreparedTask(task=task, ref=packed.ref, backend=backend, sandboxes=self._sandboxes[backend], blobs=blobs)
            kinds = {ORACLE: await asyncio.to_thread(has_oracle, task), NO_OP: True}
            trials = {
                kind: tuple(
                    [await _trial(kind, prepared, f"validate-{number}-{kind}-{time}") for time in range(self._times if wanted else 0)]
                )
                for kind, wanted in kinds.items()
            }
            try:
                leaking = await leaks_of(prepared, f"validate-{number}-leaks")
            except SandboxError:  # the trials say so
                leaking = ()
            forgeable = await _is_forgeable(prepared, trials[ORACLE], f"validate-{number}-forger")
            return structs.replace(_verdict(task, backend, trials[ORACLE], trials[NO_OP], leaking), forgeable=forgeable)


async def _is_forgeable(prepared: PreparedTask, oracle: tuple[Trial, ...], name: str) -> bool:
    """Return whether the tests believe programs that write their own reward. Tasks whose oracle fails are not tried."""
    if not oracle or any(trial.reward != SOLVED for trial in oracle) or not prepared.task.verification.has_script:
        return False
    forged = await _trial(FORGER, prepared, name)
    return forged.reward is not None and forged.reward >= SOLVED and NOTHING_TO_FORGE not in forged.detail


async def _trial(kind: str, prepared: PreparedTask, name: str) -> Trial:
    try:
        work = await stand_in_session(kind, prepared, name)
    except (SandboxError, BlobError) as error:
        return Trial(reward=None, detail=str(error))
    context = GradingContext(trajectory=work.trajectory, blobs=prepared.blobs, sandboxes=prepared.sandboxes, name=f"{name}-grading")
    said = [work.problem]
    if work.problem and work.output:
        said.append(last_lines(work.output))
    try:
        grade = await grader_for(prepared.task.grader.name)(context)
    except GraderError as error:
        return Trial(reward=None, detail=_joined(*said, error.what))
    except BlobError as error:
        return Trial(reward=None, detail=_joined(*said, str(error)))
    tests = last_lines(context.evidence[OUTPUT]) if OUTPUT in context.evidence else None
    return Trial(reward=grade.reward, detail=_joined(*said, tests, grade.ungraded))


def _verdict(task: Task, backend: str, oracle: tuple[Trial, ...], no_op: tuple[Trial, ...], leaking: tuple[str, ...]) -> Verdict:
    faults = (*faults_of(oracle, no_op), *([Fault.LEAKS] if leaking else []))
    return Verdict(
        task=task.name,
        path=str(task.path),
        grader=task.grader.name,
        sandbox=backend,
        oracle=oracle,
        no_op=no_op,
        leaks=leaking,
        faults=faults,
        detail=_reason(faults, oracle, no_op) if faults != (Fault.LEAKS,) else f"in the sandbox, {leaking[0]}",
    )


def _reason(faults: tuple[Fault, ...], oracle: tuple[Trial, ...], no_op: tuple[Trial, ...]) -> str:
    """Return the trial that shows the first fault, in words."""
    for kind, trials in (("the oracle", oracle), ("an agent that does nothing", no_op)):
        for trial in trials:
            wrong = trial.reward != SOLVED if trials is oracle else trial.reward is None or trial.reward >= SOLVED
            if faults and wrong:
                scored = "got no reward" if trial.reward is None else f"scored {trial.reward:g}"
                return f"{kind} {scored}{f': {trial.detail}' if trial.detail else ''}"
    return "the rewards of the same work differ" if faults else ""


def _joined(*said: str | None) -> str:
    return "; ".join(one for one in said if one)
