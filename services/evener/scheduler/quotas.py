"""Quotas at admission: how many sessions a principal and its team may have running, and how many tokens theirs may sample an hour.

Tokens are counted when their session ends, by its seal, which is also in the state: a scheduler that takes over knows what was spent. So a
quota of tokens is a brake on the cost, not an exact limit; sessions that run go on, and the quota of sessions bounds what they can add.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Final

from evener.proto.state import TaskState
from evener.scheduler.open_tasks import PRINCIPAL, TEAM
from evener.service.principals import Quota

HOUR_SECONDS: Final = 3600.0

QuotasOf = Callable[[str, str], Sequence[tuple[str, Quota]]]
"""Principal and team to the quotas that hold for their sessions, each with its holder in words."""


def unlimited(_principal: str, _team: str) -> Sequence[tuple[str, Quota]]:
    """Return no quotas: the default for deployments without principals."""
    return ()


class Spending:
    """The tokens of the sessions that ended within the last hour, by principal and team. All times are in Unix seconds."""

    def __init__(self) -> None:
        self._ended: list[tuple[float, str, str, int]] = []
        """The oldest session first: when it was sealed, its principal and team, its sampled tokens."""
        self._sums: Counter[str] = Counter()

    def note(self, before: TaskState | None, after: TaskState) -> int:
        """Count the sessions that were sealed from one state of a task to the next; return their tokens. `before` None: all."""
        known = () if before is None else before.sessions
        tokens = 0
        for index, session in enumerate(after.sessions):
            if session.sealed_at is not None and (index >= len(known) or known[index].sealed_at is None):
                tokens += session.sampled_tokens
                self._add(session.sealed_at, after.submitted.principal, after.submitted.team, session.sampled_tokens)
        return tokens

    def within_the_hour(self, now: float) -> Counter[str]:
        """Return the sampled tokens by holder: `principal NAME`, `team NAME`."""
        while self._ended and self._ended[0][0] <= now - HOUR_SECONDS:
            _, principal, team, tokens = heappop(self._ended)
            self._sums.subtract({PRINCIPAL.format(principal): tokens, TEAM.format(team): tokens})
        return self._sums

    def _add(self, at: float, principal: str, team: str, tokens: int) -> None:
        heappush(self._ended, (at, principal, team, tokens))
        self._sums.update({PRINCIPAL.format(principal): tokens, TEAM.format(team): tokens})


class Allowance:
    """What the quotas still allow in one round of admission."""

    def __init__(self, held: Mapping[str, int], quotas: QuotasOf, spent: Mapping[str, int]) -> None:
        """`held` are the sessions that runners may hold, `spent` the tokens of the last hour, both by holder."""
        self._quotas = quotas
        self._spent = spent
        self._held = Counter(held)
        self.refused: dict[str, str] = {}
        """Task id to the reason why none of its sessions starts."""

    def allows(self, task: TaskState) -> bool:
        """Return whether one more session of a task may start."""
        task_id = task.submitted.task_id
        if task_id not in self.refused and (reason := self._refusal(task)):
            self.refused[task_id] = reason
        return task_id not in self.refused

    def take(self, task: TaskState) -> None:
        """Count a session that starts."""
        self._held.update((PRINCIPAL.format(task.submitted.principal), TEAM.format(task.submitted.team)))

    def _refusal(self, task: TaskState) -> str:
        for holder, quota in self._quotas(task.submitted.principal, task.submitted.team):
            if quota.sessions is not None and self._held[holder] >= quota.sessions:
                return f"{holder} has {self._held[holder]} of {quota.sessions} sessions running"
            if quota.tokens_per_hour is not None and self._spent.get(holder, 0) >= quota.tokens_per_hour:
                return f"{holder} sampled {self._spent.get(holder, 0)} of {quota.tokens_per_hour} tokens within the hour"
        return ""
