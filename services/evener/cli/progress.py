"""How tasks go on: a table that lives on a terminal, JSON lines otherwise."""

import os
import sys
from collections.abc import Collection, Iterable
from typing import TextIO

import msgspec
from rich.console import Console
from rich.live import Live
from rich.table import Table

from evener.client.client import Client
from evener.client.views import TaskView
from evener.proto.ends import End
from evener.proto.ids import session_of
from evener.proto.state import Stage
from evener.proto.tasks import TaskOutcome
from evener.service.exits import complain

GOOD = frozenset({TaskOutcome.MERGED, TaskOutcome.KEPT})


def console(file: TextIO | None = None) -> Console:
    """Return where a command writes for people, stdout where nothing else is said; without colours where NO_COLOR says so."""
    return Console(file=file or sys.stdout, no_color="NO_COLOR" in os.environ)


async def watch(client: Client, run_id: str, task_ids: Collection[str]) -> dict[str, TaskView]:
    """Show the tasks until all have ended; return them by id."""
    views: dict[str, TaskView] = {}
    out = console()
    with Live(console=out, auto_refresh=out.is_terminal, refresh_per_second=4, transient=False) as live:
        async for view in client.watch(run_id):
            if view.task_id not in task_ids:
                continue
            views[view.task_id] = view
            if out.is_terminal:
                live.update(table(views.values()))
            else:
                tell(view)
            if len(views) == len(task_ids) and all(known.outcome is not None for known in views.values()):
                break
    return views


def tell_troubles(views: Iterable[TaskView]) -> None:
    """Write one line on stderr for each trouble: tasks that were not delivered, or whose sessions all ended with a failing harness."""
    troubles: dict[tuple[str, str], list[str]] = {}
    for view in views:
        if trouble := _trouble(view):
            troubles.setdefault(trouble, []).append(view.task_id)
    for (how, why), task_ids in troubles.items():
        others = f" and {len(task_ids) - 1} more" if len(task_ids) > 1 else ""
        complain(f"task {task_ids[0]}{others} {how}: {why or f'evener show {session_of(task_ids[0], 0)}'}")


def _trouble(view: TaskView) -> tuple[str, str] | None:
    """Return how a task ended, and why or where to look."""
    if view.outcome not in GOOD:
        return view.outcome.value if view.outcome else "is open", view.reason or "its sessions were not usable"
    if view.ends.get(End.HARNESS_FAILED, 0) == view.samples:
        return f"{view.outcome.value}, but the harness failed in all its sessions", ""
    return None


def tell(event: object) -> None:
    """Write one JSON line."""
    sys.stdout.write(msgspec.json.encode(event).decode() + "\n")
    sys.stdout.flush()


def table(views: Iterable[TaskView]) -> Table:
    """Return tasks as people read them."""
    shown = Table("task", "", "sessions", "rewards", "mean", box=None, header_style="bold", pad_edge=False)
    for view in sorted(views, key=lambda view: (view.submitted_at, view.task_id)):
        known = [reward for reward in view.rewards if reward is not None]
        mean = f"{sum(known) / len(known):.2f}" if known else ""
        rewards = " ".join("-" if reward is None else f"{reward:.2g}" for reward in view.rewards)
        shown.add_row(view.name or view.task_id, _state(view), _sessions(view), rewards, mean)
    return shown


def _state(view: TaskView) -> str:
    if view.outcome is None:
        return "[yellow]cancelling[/]" if view.cancelled else "[yellow]running[/]"
    colour = "green" if view.outcome in GOOD else "red"
    return f"[{colour}]{view.outcome.value}[/]" + (f" {view.reason}" if view.reason else "")


def _sessions(view: TaskView) -> str:
    ends = [f"{count} {end.value}" for end, count in view.ends.items()]
    open_ones = [f"{count} {stage.value}" for stage, count in view.stages.items() if stage is not Stage.SEALED and count]
    return ", ".join(ends + open_ones)
