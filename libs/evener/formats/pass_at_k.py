"""pass@1 and pass@k of evaluations, with intervals. Pure.

pass@k is the chance that at least one of k sessions of a task solves it: per task the unbiased estimate 1 - C(n - c, k) / C(n, k) of n
graded sessions, c of which solved it (Chen et al. 2021, Evaluating Large Language Models Trained on Code), then the mean over tasks.

Intervals are of 95 % and hold for further tasks of the kind, not only for further samples of these: sessions of one task are alike, so the
spread between tasks counts. They are Wilson's for as many independent trials as have that spread: such an interval stays in [0, 1], and has
a width even if all tasks were solved, or none.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

Z: Final = 1.959964
"""The quantile of the normal distribution for 95 %."""


class TaskScores(Struct, frozen=True, kw_only=True):
    """The sessions of one task."""

    task: str
    rewards: tuple[float | None, ...]
    """The reward of each session. None: it was not graded, which is neither solved nor failed."""


class Estimate(Struct, frozen=True, kw_only=True):
    """A share with its interval."""

    value: float
    low: float
    high: float
    tasks: int
    """The number of tasks that it is of: those with at least k graded sessions."""


class Evaluation(Struct, frozen=True, kw_only=True):
    """The figures of one harness on one set of tasks."""

    harness: str
    task_set: str
    tasks: int
    sessions: int
    graded: int
    """The number of sessions that have a reward. The others count nowhere."""
    mean_reward: float | None
    """The mean over tasks of the mean over sessions. None: nothing was graded."""
    pass_at: dict[int, Estimate]
    """k to pass@k. A k for which no task has enough graded sessions is not in it."""


def evaluation(harness: str, task_set: str, scores: Sequence[TaskScores], ks: Iterable[int], *, solved_at: float = 1.0) -> Evaluation:
    """Return the figures. A session solves its task if its reward is at least `solved_at`."""
    graded = [[reward for reward in task.rewards if reward is not None] for task in scores]
    solved = [(len(rewards), sum(reward >= solved_at for reward in rewards)) for rewards in graded]
    means = [statistics.fmean(rewards) for rewards in graded if rewards]
    estimates = {k: estimate(solved, k) for k in sorted(set(ks))}
    return Evaluation(
        harness=harness,
        task_set=task_set,
        tasks=len(scores),
        sessions=sum(len(task.rewards) for task in scores),
        graded=sum(map(len, graded)),
        mean_reward=statistics.fmean(means) if means else None,
        pass_at={k: found for k, found in estimates.items() if found is not None},
    )


def pass_at(sessions: int, solved: int, k: int) -> float:
    """Return the chance that k of these sessions, drawn without replacement, have one that solved its task. 1 <= k <= sessions."""
    return 1.0 - math.comb(sessions - solved, k) / math.comb(sessions, k)


def estimate(solved: Iterable[tuple[int, int]], k: int) -> Estimate | None:
    """Return pass@k of tasks, each given as (sessions, of which solved). None: no task has k sessions."""
    enough = [(sessions, count) for sessions, count in solved if sessions >= k]
    if not enough:
        return None
    shares = [pass_at(sessions, count, k) for sessions, count in enough]
    mean = statistics.fmean(shares)
    draws = sum(sessions // k for sessions, _ in enough)
    low, high = wilson(mean, _trials(shares, mean, draws))
    return Estimate(value=mean, low=low, high=high, tasks=len(enough))


def wilson(share: float, trials: float) -> tuple[float, float]:
    """Return Wilson's interval of a share of so many trials."""
    centre = (share + Z * Z / (2 * trials)) / (1 + Z * Z / trials)
    half = Z / (1 + Z * Z / trials) * math.sqrt(share * (1 - share) / trials + Z * Z / (4 * trials * trials))
    return max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half))


def _trials(shares: Sequence[float], mean: float, draws: int) -> float:
    """Return the number of independent trials whose mean would vary as much as that of these tasks: from the tasks to the draws."""
    if len(shares) == 1:
        return float(draws)
    spread = statistics.variance(shares) / len(shares)
    if not 0.0 < mean < 1.0:
        return float(len(shares))
    if spread == 0.0:
        return float(draws)
    return min(max(mean * (1 - mean) / spread, 1.0), float(draws))
