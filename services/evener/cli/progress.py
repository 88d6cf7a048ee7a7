"""Shows the progress of tasks: a live table on a terminal, otherwise a line of JSON for each task that ends."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from textwrap import shorten
from typing import Final, Protocol

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from evener.cli.output import console, table, tell
from evener.client.client import Client
from evener.client.views import TaskView
from evener.proto.ids import session_of
from evener.proto.reasons import ExclusionReason, TerminationReason
from evener.proto.spec import Purpose
from evener.proto.state import Stage
from evener.proto.tasks import TaskOutcome
from evener.service.exits import complain
from evener.tokens.remarks import tools_hidden

GOOD: Final = frozenset({TaskOutcome.MERGED, TaskOutcome.KEPT})
SHOWN_TASKS: Final = 16
"""The number of tasks that a terminal shows: those in progress, then those that ended last."""
REASON_CHARACTERS: Final = 80
"""The length of a task's reason in the table. The full text is printed below."""
HINTS: Final = {
    ExclusionReason.CONSTRAINED: "the reported logprobs are not those of the sampled distribution; sample at temperature 1 without filters"
}
"""What a user can do about excluded tokens."""


ALL_ENDED: Final = {TerminationReason.HARNESS_FAILED: "the harness failed", TerminationReason.CONTEXT_OVERFLOW: "the context was too short"}
"""Termination reasons that get a line if all sessions of a group have them."""


class TaskObserver(Protocol):
    """Gets each change of a task."""

    async def observe(self, view: TaskView) -> None: ...


async def watch(client: Client, run_id: str, task_ids: Collection[str], run_warnings: TaskObserver | None = None) -> dict[str, TaskView]:
    """Show the tasks until all have ended; return them by id."""
    views: dict[str, TaskView] = {}
    out = console()
    if not out.is_terminal:
        tell({"run": run_id, "tasks": len(task_ids)})
    with Live(console=out, auto_refresh=out.is_terminal, refresh_per_second=4, transient=False) as live:
        async for view in client.watch(run_id):
            if view.task_id not in task_ids:
                continue
            before, views[view.task_id] = views.get(view.task_id), view
            if out.is_terminal:
                live.update(overview(list(views.values()), len(task_ids)))
            elif view.outcome is not None and (before is None or before.outcome is None):
                tell(view)
            if run_warnings is not None:
                await run_warnings.observe(view)
            if len(views) == len(task_ids) and all(known.outcome is not None for known in views.values()):
                break
    return views


def tell_troubles(views: Iterable[TaskView]) -> None:
    """Write one line on stderr for each kind of trouble: tasks not delivered, delivered with nothing to train, or with a failing harness.

    A line also warns if the policy never saw the tools that it was offered.
    """
    troubles: dict[tuple[str, str], list[str]] = {}
    known = tuple(views)
    if (hidden := tools_hidden(sum(view.accounting.calls_without_tools for view in known if view.accounting))) is not None:
        complain(f"warning: {hidden}")
    for view in known:
        if trouble := _trouble(view):
            troubles.setdefault(trouble, []).append(view.task_id)
    for (how, why), task_ids in troubles.items():
        others = f" and {len(task_ids) - 1} more" if len(task_ids) > 1 else ""
        complain(f"task {task_ids[0]}{others} {how}: {why or f'evener show {session_of(task_ids[0], 0)}'}")


def _trouble(view: TaskView) -> tuple[str, str] | None:
    """Return how a task ended, and the reason or where to look."""
    if view.outcome not in GOOD:
        return view.outcome.value if view.outcome else "is open", view.reason or "its sessions were not usable"
    if view.purpose is not Purpose.EVAL and view.accounting is not None and not view.accounting.delivered:
        return f"{view.outcome.value}, but nothing of it can be trained", view.reason or _excluded(view)
    for end, what in ALL_ENDED.items():
        if view.ends.get(end, 0) == view.samples:
            return f"{view.outcome.value}, but {what} in all its sessions", view.reason
    return (view.outcome.value, view.reason) if view.reason else None


def _excluded(view: TaskView) -> str:
    """Return why a group has no token to train, without numbers, so that equal reasons are shown once."""
    reasons = view.accounting.excluded if view.accounting else {}
    if not reasons:
        return "no token was sampled"
    told = (f"{reason.value.replace('_', ' ')}{f' ({HINTS[reason]})' if reason in HINTS else ''}" for reason in sorted(reasons))
    return f"all sampled tokens are excluded: {', '.join(told)}"


def overview(views: Sequence[TaskView], total: int) -> RenderableType:
    """Return the progress of a run: one line of counts, and a table of the tasks that fit."""
    ended = sorted((view for view in views if view.outcome is not None), key=lambda view: view.ended_at or 0.0)
    going = [view for view in views if view.outcome is None and view.stages.get(Stage.QUEUED, 0) < view.samples]
    waiting = [view for view in views if view.outcome is None and view not in going]
    shown = [*going, *waiting][:SHOWN_TASKS]
    shown += ended[len(shown) - SHOWN_TASKS :] if len(shown) < SHOWN_TASKS else []
    hidden = len(views) - len(shown)
    more = [Text(f"and {hidden} more tasks", "dim")] if hidden else []
    held = next((view.held for view in views if view.held), "")
    waits = [Text(f"new sessions wait: {held}", "yellow")] if held else []
    return Group(task_table(shown), *more, *waits, _counts(views, total))


def _counts(views: Sequence[TaskView], total: int) -> Text:
    outcomes = Counter(view.outcome.value for view in views if view.outcome is not None)
    rewards = [reward for view in views for reward in view.rewards if reward is not None]
    mean = f", mean reward {sum(rewards) / len(rewards):.3g}" if rewards else ""
    sealed = sum(view.stages.get(Stage.SEALED, 0) for view in views)
    said = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()) or "none ended"
    return Text(f"{total} tasks: {said}; {sealed} of {sum(view.samples for view in views)} sessions{mean}", "dim")


def task_table(views: Iterable[TaskView]) -> Table:
    """Return tasks as a table."""
    shown = table("task", "", "sessions", "rewards", "mean")
    for view in sorted(views, key=lambda view: (view.submitted_at, view.task_id)):
        known = [reward for reward in view.rewards if reward is not None]
        mean = f"{sum(known) / len(known):.2f}" if known else ""
        rewards = " ".join("-" if reward is None else f"{reward:.2g}" for reward in view.rewards)
        shown.add_row(view.name or view.task_id, _state(view), _sessions(view), rewards, mean)
    return shown


def _state(view: TaskView) -> Text:
    if view.outcome is None:
        return Text("cancelling" if view.cancelled else "running", "yellow")
    said = Text(view.outcome.value, "green" if view.outcome in GOOD else "red")
    return Text.assemble(said, f" {shorten(view.reason, REASON_CHARACTERS, placeholder='…')}") if view.reason else said


def _sessions(view: TaskView) -> str:
    ends = [f"{count} {end.value}" for end, count in view.ends.items()]
    open_ones = [f"{count} {stage.value}" for stage, count in view.stages.items() if stage is not Stage.SEALED and count]
    return ", ".join(ends + open_ones)
