"""The summary of a run: counts, rewards, tokens, and the exit code."""

import statistics
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final

from msgspec import Struct
from rich.table import Table

from evener.cli.output import console, facts, tell, tell_each
from evener.cli.progress import GOOD
from evener.client.views import TaskView
from evener.proto.spec import Purpose
from evener.proto.tasks import TaskOutcome

EXIT_DONE: Final = 0
EXIT_FAILED: Final = 1
NOTHING_TO_TRAIN: Final = 3


class Spread(Struct, frozen=True):
    """The rewards of all graded sessions."""

    mean: float | None
    """The mean. None: there is no reward."""
    deviation: float | None
    """The standard deviation within a group, averaged over groups of two or more. 0: nothing to learn."""


class RunSummary(Struct, frozen=True, kw_only=True):
    """The last line of `evener run` without a terminal. Keys stay; more may be added."""

    run: str
    tasks: int
    outcomes: dict[str, int]
    """The number of tasks by outcome: `merged`, `kept`, `dropped`, `failed`, `cancelled`."""
    sessions: int
    ends: dict[str, int]
    """The number of sessions by termination reason."""
    rewards: Spread
    sampled: int
    """The number of sampled tokens in all groups that ended."""
    delivered: int
    """The number of these tokens that are delivered in rows, for training if the purpose is `train`."""
    excluded: dict[str, int]
    """The number of sampled tokens that are excluded, by reason."""
    calls_without_tools: int
    """The number of calls whose tools the policy never saw, because its chat template does not render tools."""


def summarize_run(run_id: str, views: Iterable[TaskView]) -> RunSummary:
    """Return the figures of a run's tasks."""
    tasks = tuple(views)
    ends: Counter[str] = Counter()
    excluded: Counter[str] = Counter()
    accountings = [task.accounting for task in tasks if task.accounting is not None]
    for task in tasks:
        ends.update({end.value: count for end, count in task.ends.items()})
    for accounting in accountings:
        excluded.update({reason.value: count for reason, count in accounting.excluded.items()})
    return RunSummary(
        run=run_id,
        tasks=len(tasks),
        outcomes=dict(Counter(task.outcome.value if task.outcome else "open" for task in tasks)),
        sessions=sum(task.samples for task in tasks),
        ends=dict(ends),
        rewards=spread([[reward for reward in task.rewards if reward is not None] for task in tasks]),
        sampled=sum(accounting.sampled for accounting in accountings),
        delivered=sum(accounting.delivered for accounting in accountings),
        excluded=dict(excluded),
        calls_without_tools=sum(accounting.calls_without_tools for accounting in accountings),
    )


def summarize_runs(views: Iterable[TaskView]) -> list[RunSummary]:
    """Return the figures of each run, in the order of their first tasks."""
    by_run: dict[str, list[TaskView]] = {}
    for view in sorted(views, key=lambda view: view.submitted_at):
        by_run.setdefault(view.run_id, []).append(view)
    return [summarize_run(run_id, tasks) for run_id, tasks in by_run.items()]


def spread(groups: Iterable[list[float]]) -> Spread:
    """Return mean and spread of the rewards of groups."""
    known = [rewards for rewards in groups if rewards]
    deviations = [statistics.pstdev(rewards) for rewards in known if len(rewards) > 1]
    return Spread(
        mean=statistics.fmean(reward for rewards in known for reward in rewards) if known else None,
        deviation=statistics.fmean(deviations) if deviations else None,
    )


def exit_code(views: Collection[TaskView]) -> int:
    """Return 0 if every group was delivered or dropped by a rule, 1 if one was neither, 3 if one, or the run, has nothing to train."""
    dropped = [view for view in views if view.outcome is TaskOutcome.DROPPED]
    if not all(view.outcome in GOOD for view in views if view not in dropped):
        return EXIT_FAILED
    nothing = len(dropped) == len(views) or any(empty(view) for view in views)
    return NOTHING_TO_TRAIN if nothing else EXIT_DONE


def empty(view: TaskView) -> bool:
    """Return whether a group was delivered to trainers without a token to train."""
    merged = view.outcome is TaskOutcome.MERGED and view.purpose is Purpose.TRAIN
    return merged and view.accounting is not None and not view.accounting.delivered


def tell_summary(summary: RunSummary) -> None:
    """Write some lines on a terminal, otherwise one line of JSON."""
    out = console()
    if out.is_terminal:
        out.print(lines(summary))
    else:
        tell(summary)


def tell_runs(summaries: Iterable[RunSummary]) -> None:
    """Write a table on a terminal, otherwise a line of JSON for each run."""
    tell_each(summaries, ("run", "tasks", "sessions", "mean reward", "tokens delivered"), _row)


def _row(summary: RunSummary) -> tuple[str, ...]:
    mean = "" if summary.rewards.mean is None else f"{summary.rewards.mean:.3g}"
    return summary.run, listed(summary.outcomes), listed(summary.ends), mean, str(summary.delivered)


def lines(summary: RunSummary) -> Table:
    """Return the summary as a table."""
    rewards = summary.rewards
    mean = "none" if rewards.mean is None else f"mean {rewards.mean:.3g}"
    deviation = "" if rewards.deviation is None else f", spread within a group {rewards.deviation:.3g}"
    excluded = f"{sum(summary.excluded.values())} excluded: {listed(summary.excluded) or 'none'}"
    told = (
        ("run", summary.run),
        ("groups", f"{summary.tasks}: {listed(summary.outcomes)}"),
        ("sessions", f"{summary.sessions}: {listed(summary.ends)}"),
        ("rewards", mean + deviation),
        ("tokens", f"{summary.sampled} sampled = {summary.delivered} delivered + {excluded}"),
    )
    return facts(told)


def listed(counts: dict[str, int]) -> str:
    """Return counts in words, the largest first."""
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))
