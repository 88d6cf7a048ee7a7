"""Runs evaluations and tells their figures."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from evener.cli.connection import connect
from evener.cli.errors import Usage
from evener.cli.group_files import write_bytes
from evener.cli.interrupts import leaving
from evener.cli.output import console, table, tell
from evener.cli.progress import tell_troubles, watch
from evener.cli.run_warnings import RunWarnings
from evener.cli.sandbox_choice import offered_by, offered_here, placed, sandboxes_of, trusting
from evener.cli.submission import RUN_ID, Planned, RunRequest, plan, submit
from evener.client.client import Client
from evener.client.views import TaskView
from evener.formats.evaluation_picture import picture
from evener.formats.pass_at_k import Evaluation, TaskScores, evaluation
from evener.proto.sandbox import SandboxOffer
from evener.service.exits import complain


class Arm(Struct, frozen=True, kw_only=True):
    """One harness on one set of tasks: a run."""

    run_request: RunRequest
    task_set: str
    planned: tuple[Planned, ...]


class EvaluationRequest(Struct, frozen=True, kw_only=True):
    """What holds for all arms."""

    name: str
    ks: tuple[int, ...]
    solved_at: float
    trust_local: bool
    out: Path | None
    state: Path | None


class EvaluationReport(Struct, frozen=True, kw_only=True):
    """The last line of `evener eval` without a terminal, and `evaluation.json`. Keys stay; more may be added."""

    evaluation: str
    solved_at: float
    results: tuple[Evaluation, ...]


def plan_arms(requests: Iterable[RunRequest], folders: Sequence[Path], sandbox: str | None) -> list[Arm]:
    """Read and pack all tasks for each harness. Raises TaskError, Usage. Nothing is started yet."""
    arms: dict[str, Arm] = {}
    for request in requests:
        for folder in folders:
            task_set = folder.resolve().name
            run_id = f"{request.run_id}.{request.harness.name}.{task_set}"
            if not RUN_ID.fullmatch(run_id) or run_id in arms:
                msg = f"{run_id!r} cannot name a run: use a shorter --run-id, and folders of different names of letters and digits"
                raise Usage(msg)
            own = structs.replace(request, run_id=run_id)
            arms[run_id] = Arm(run_request=own, task_set=task_set, planned=tuple(plan(folder, own, sandbox)))
    return list(arms.values())


async def evaluate(arms: Sequence[Arm], wanted: EvaluationRequest) -> int:
    """Submit all arms, wait for their ends, tell the figures; return the exit code."""
    brought = False

    def up() -> tuple[str, ...]:
        nonlocal arms, brought
        brought, arms = True, _placed(arms, offered_here(trust_local=wanted.trust_local))
        return tuple(dict.fromkeys(word for arm in arms for word in _trusting(arm, trust_local=wanted.trust_local)))

    with leaving() as asked:
        try:
            async with connect(wanted.state, up, sampling=True) as client:
                arms = arms if brought else _placed(arms, offered_by(await client.fleet()))
                results = await _results(client, arms, wanted)
        except asyncio.CancelledError:
            if asked.number is None:
                raise
            complain(f"the same command with --run-id {wanted.name} continues this evaluation")
            return asked.taken_back()
    _tell(EvaluationReport(evaluation=wanted.name, solved_at=wanted.solved_at, results=tuple(results)), wanted)
    return 0 if all(k in one.pass_at and one.pass_at[k].tasks == one.tasks for one in results for k in wanted.ks[:1]) else 1


def _placed(arms: Sequence[Arm], offer: SandboxOffer) -> list[Arm]:
    return [structs.replace(arm, planned=tuple(placed(arm.planned, offer))) for arm in arms]


def _trusting(arm: Arm, *, trust_local: bool) -> tuple[str, ...]:
    return trusting(arm.run_request, sandboxes_of(arm.planned), trust_local=trust_local)


async def _results(client: Client, arms: Sequence[Arm], wanted: EvaluationRequest) -> list[Evaluation]:
    """Submit everything before waiting for anything: arms run beside each other."""
    warnings = [RunWarnings(client, arm.run_request) for arm in arms]
    await warnings[0].check_engines()
    for arm in arms:
        await submit(client, arm.planned)
    results: list[Evaluation] = []
    for arm, observer in zip(arms, warnings, strict=True):
        views = await watch(client, arm.run_request.run_id, {each.task_id for each in arm.planned}, observer)
        tell_troubles(views.values())
        results.append(result_of(arm, views, wanted))
    return results


def result_of(arm: Arm, views: Mapping[str, TaskView], wanted: EvaluationRequest) -> Evaluation:
    """Return the figures of an arm whose tasks have ended."""
    scores = [TaskScores(task=view.name or view.task_id, rewards=view.rewards or (None,) * view.samples) for view in views.values()]
    return evaluation(arm.run_request.harness.name, arm.task_set, scores, wanted.ks, solved_at=wanted.solved_at)


def _tell(report: EvaluationReport, wanted: EvaluationRequest) -> None:
    if wanted.out is not None:
        write_bytes(wanted.out / "evaluation.json", msgspec.json.format(msgspec.json.encode(report)) + b"\n")
        write_bytes(wanted.out / "evaluation.svg", picture(report.evaluation, report.results).encode())
    ungraded = sum(one.sessions - one.graded for one in report.results)
    if ungraded:
        complain(f"warning: {ungraded} sessions were not graded and count nowhere; `evener show SESSION` says why")
    out = console()
    if not out.is_terminal:
        tell(report)
        return
    shown = table("harness", "tasks", "graded", "mean reward", *(f"pass@{k}" for k in wanted.ks))
    for one in report.results:
        mean = "" if one.mean_reward is None else f"{one.mean_reward:.3g}"
        graded = f"{one.graded} of {one.sessions}"
        shown.add_row(one.harness, f"{one.task_set} ({one.tasks})", graded, mean, *(_share(one, k) for k in wanted.ks))
    out.print(shown)


def _share(one: Evaluation, k: int) -> str:
    found = one.pass_at.get(k)
    return "none" if found is None else f"{found.value:.1%} [{found.low:.1%}, {found.high:.1%}]"
