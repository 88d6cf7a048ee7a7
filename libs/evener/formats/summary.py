"""Summarizes a run from its groups alone: the figures of `summary.json`."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from evener.proto.sessions import RootReason
from evener.proto.trajectories import Accounting, GroupFailed, GroupMerged, GroupOutcome, Member, TrajectoryScored

STAGES: Final = ("queue", "prepare", "agent", "engine", "reconstruct", "grade", "merge")
NOT_ENDED: Final = "not_ended"
"""The state of a session that had not ended when its group was delivered early."""


class GroupCounts(Struct, frozen=True):
    """The number of groups by outcome."""

    submitted: int
    merged: int
    """The number of delivered groups: merged, or kept if their purpose is not `train`."""
    dropped: int
    """The number of groups that a rule of the run dropped, though they could have been used."""


class SessionCounts(Struct, frozen=True):
    """The number of sessions in all groups."""

    total: int
    by_end: dict[str, int]


class Rewards(Struct, frozen=True):
    """The rewards of graded sessions."""

    mean: float | None
    """The mean reward. None: no session was graded."""
    per_group: dict[str, tuple[float | None, ...]]
    """The rewards by group id, in the order of the sessions. None: the session was not graded."""


class Tokens(Struct, frozen=True):
    """The accounting of tokens: `delivered + sum(excluded) == sampled`."""

    sampled: int
    delivered: int
    excluded: dict[str, int]


class FidelityCounts(Struct, frozen=True):
    """The number of delivered rows by fidelity."""

    fed: int
    matched: int


class Summary(Struct, frozen=True, kw_only=True):
    """The figures of a run."""

    groups: GroupCounts
    sessions: SessionCounts
    rewards: Rewards
    flags: dict[str, int]
    """The number of sessions with signs of reward hacking, by detector."""
    tokens: Tokens
    rows: int
    """The number of delivered rows."""
    rows_per_session: float
    """The mean number of rows per session that has any."""
    fidelity: FidelityCounts
    calls_without_tools: int
    """The number of calls whose tools the policy never saw, because its chat template does not render tools."""
    thinking_stripped: int
    """The number of calls that began a row because the template drops earlier reasoning; `thinking = "all"` keeps it."""
    seconds: dict[str, float]
    """The mean seconds per session of each stage: `queue` (the waits of calls for admission, a slot of an engine or a weight update, but
    not the wait of a session for a runner), `prepare`, `agent` (the agent's clock), `engine` (sampling, a part of `agent`), `reconstruct`
    (from the seal to grading), `grade`, and `merge` (from the group's last score)."""


def summarize(outcomes: Iterable[GroupOutcome], submitted: int | None = None) -> Summary:
    """Return the figures of the groups that ended. `submitted` is the number of groups that were submitted (None: as many as ended)."""
    ended = tuple(outcomes)
    members = [member for event in ended for member in event.members]
    rows = [row for _, scored in seen(members) for row in scored.trajectory.rows]
    trained = sum(1 for _, scored in seen(members) if scored.trajectory.rows)
    fidelity = Counter(row.fidelity.value for row in rows)
    merged = sum(isinstance(event, GroupMerged) for event in ended)
    dropped = sum(isinstance(event, GroupFailed) and event.dropped_by is not None for event in ended)
    return Summary(
        groups=GroupCounts(submitted=len(ended) if submitted is None else submitted, merged=merged, dropped=dropped),
        sessions=SessionCounts(
            total=len(members),
            by_end=dict(Counter(member.termination_reason.value if member.termination_reason else NOT_ENDED for member in members)),
        ),
        rewards=_rewards(ended),
        flags=dict(Counter(name for _, scored in seen(members) for name in sorted({flag.detector.value for flag in scored.flags}))),
        tokens=_tokens([event.accounting for event in ended]),
        rows=len(rows),
        rows_per_session=round(len(rows) / trained, 4) if trained else 0.0,
        fidelity=FidelityCounts(fed=fidelity["fed"], matched=fidelity["matched"]),
        calls_without_tools=sum(event.accounting.calls_without_tools for event in ended),
        thinking_stripped=sum(call.root is RootReason.THINKING_STRIPPED for _, scored in seen(members) for call in scored.trajectory.calls),
        seconds=_seconds(ended),
    )


def seen(members: Iterable[Member]) -> Iterator[tuple[Member, TrajectoryScored]]:
    """Yield the members whose sessions were seen, each with its session."""
    for member in members:
        if member.scored is not None:
            yield member, member.scored


def ended_at(event: GroupOutcome) -> float:
    """Return when a group ended, in Unix seconds."""
    return event.merged_at if isinstance(event, GroupMerged) else event.failed_at


def stages(scored: TrajectoryScored) -> dict[str, float]:
    """Return the seconds of a session by stage, except `merge`."""
    trajectory = scored.trajectory
    exited = trajectory.exit
    return {
        "queue": sum(call.queue_seconds for call in trajectory.calls),
        "prepare": exited.prepare_seconds if exited else 0.0,
        "agent": exited.agent_seconds if exited else 0.0,
        "engine": sum(call.engine_seconds for call in trajectory.calls),
        "reconstruct": max(0.0, scored.scored_at - trajectory.sealed_at - scored.grading_seconds),
        "grade": scored.grading_seconds,
    }


def _rewards(ended: Sequence[GroupOutcome]) -> Rewards:
    per_group = {event.group_id: tuple(member.reward for member in event.members) for event in ended}
    given = [reward for rewards in per_group.values() for reward in rewards if reward is not None]
    return Rewards(mean=sum(given) / len(given) if given else None, per_group=per_group)


def _tokens(accountings: Sequence[Accounting]) -> Tokens:
    excluded: Counter[str] = Counter()
    for accounting in accountings:
        excluded.update({reason.value: tokens for reason, tokens in accounting.excluded.items()})
    return Tokens(
        sampled=sum(accounting.sampled for accounting in accountings),
        delivered=sum(accounting.delivered for accounting in accountings),
        excluded=dict(excluded),
    )


def _seconds(ended: Sequence[GroupOutcome]) -> dict[str, float]:
    sums = dict.fromkeys(STAGES, 0.0)
    sessions = 0
    for event in ended:
        scores = [scored for _, scored in seen(event.members)]
        sessions += len(scores)
        for scored in scores:
            for stage, seconds in stages(scored).items():
                sums[stage] += seconds
        if scores:
            sums["merge"] += max(0.0, ended_at(event) - max(scored.scored_at for scored in scores)) * len(scores)
    return {stage: round(total / sessions, 4) if sessions else 0.0 for stage, total in sums.items()}
