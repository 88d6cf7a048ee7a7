"""Validates tasks and tells the verdicts."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from rich.text import Text

from evener.cli.errors import Usage
from evener.cli.output import console, table, tell
from evener.cli.task_needs import check_name, check_needs
from evener.graders.validation import Trial, Validator, Verdict
from evener.runtime.folders import temporary_folder
from evener.sandboxes.config import SandboxesConfig
from evener.sandboxes.registry import BACKENDS, LOCAL, open_backends
from evener.service.exits import complain
from evener.tasks.directory import Task, find, load
from evener.tasks.errors import TaskError


class Validated(Struct, frozen=True, kw_only=True):
    """The last line of `evener tasks validate`. Keys stay; more may be added."""

    tasks: int
    sound: int
    without_oracle: int
    """The number of tasks of which only the agent that does nothing was tried."""
    faults: dict[str, int]


async def validate_tasks(folder: Path, sandbox: str | None, *, times: int, concurrency: int, trust_local: bool, json: bool) -> int:
    """Try all tasks, print a verdict for each as it comes; return the exit code. Raises TaskError, Usage, SandboxError."""
    check_name(sandbox)
    paths = await asyncio.to_thread(find, folder)
    backends = [await asyncio.to_thread(_backend, path, sandbox) for path in paths]
    if not trust_local and any(runs and not BACKENDS[name].isolates for name, runs in backends):
        msg = (
            "solutions and tests would run as plain processes with your rights (`local` sandboxes). Choose another one "
            "(--sandbox bubblewrap, --sandbox docker), or give --trust-local if you trust these tasks"
        )
        raise Usage(msg)
    verdicts: list[Verdict] = []
    async with temporary_folder("evener-validate-") as root, open_backends(root, SandboxesConfig()) as sandboxes:
        validator = Validator(sandboxes, times=times, concurrency=concurrency)
        tries = [validator.validate(path, name, number) for number, (path, (name, _)) in enumerate(zip(paths, backends, strict=True))]
        for done in asyncio.as_completed(tries):
            verdicts.append(await done)
            if json or not console().is_terminal:
                tell(verdicts[-1])
    _tell_all(verdicts, json=json)
    if forgeable := sorted(verdict.task for verdict in verdicts if verdict.forgeable):
        complain(f"warning: a program that these tests run can write its own reward (docs/rewards.md): {', '.join(forgeable)}")
    return 1 if any(verdict.faults for verdict in verdicts) else 0


def _backend(path: Path, sandbox: str | None) -> tuple[str, bool]:
    """Return the backend of a task, and whether it runs something there. Raises TaskNeedsMore."""
    try:
        task = load(path)
    except TaskError:  # its verdict says so
        return sandbox or LOCAL, False
    name = sandbox or task.backend or LOCAL
    check_needs(task, (name,))
    return name, _runs(task)


def _runs(task: Task) -> bool:
    return (task.path / "tests").is_dir() or task.solution is not None


def _tell_all(verdicts: Sequence[Verdict], *, json: bool) -> None:
    out = console()
    summary = Validated(
        tasks=len(verdicts),
        sound=sum(not verdict.faults for verdict in verdicts),
        without_oracle=sum(not verdict.oracle for verdict in verdicts),
        faults=dict(Counter(fault.value for verdict in verdicts for fault in verdict.faults)),
    )
    if json or not out.is_terminal:
        tell(summary)
        return
    shown = table("task", "oracle", "nothing done", "faults", "why")
    for verdict in sorted(verdicts, key=lambda one: (not one.faults, one.task)):
        faults = Text(", ".join(fault.value for fault in verdict.faults) or "none", "red" if verdict.faults else "green")
        shown.add_row(verdict.task, _rewards(verdict.oracle), _rewards(verdict.no_op), faults, verdict.detail)
    out.print(shown)
    out.print(f"{summary.sound} of {summary.tasks} tasks are sound; {summary.without_oracle} have no oracle to try")


def _rewards(trials: Sequence[Trial]) -> str:
    return " ".join("none" if trial.reward is None else f"{trial.reward:g}" for trial in trials)
