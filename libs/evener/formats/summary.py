"""What a run came to, from its groups alone: the figures of `summary.json`."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from evener.proto.sessions import RootReason
from evener.proto.trajectories import Accounting, GroupFailed, GroupMerged, Member, TrajectoryScored

Outcome = GroupMerged | GroupFailed

STAGES: Final = ("queue", "prepare", "agent", "engine", "reconstruct", "grade", "merge")
NOT_ENDED: Final = "not_ended"
"""A session that had not been seen when its group was delivered early."""


class GroupCounts(Struct, frozen=True):
    """Groups."""

    submitted: int
    merged: int
    """Delivered: merged, or kept where their purpose is not `train`."""


class SessionCounts(Struct, frozen=True):
    """Sessions of all groups."""

    total: int
    by_end: dict[str, int]


class Rewards(Struct, frozen=True):
    """Rewards of graded sessions."""

    mean: float | None
    """None: none was graded."""
    per_group: dict[str, tuple[float | None, ...]]
    """By group id, in the order of the sessions. None: not graded."""


class Tokens(Struct, frozen=True):
    """`delivered + sum(left_out) == sampled`."""

    sampled: int
    delivered: int
    left_out: dict[str, int]


class FidelityCounts(Struct, frozen=True):
    """Delivered rows by how their ids are known."""

    fed: int
    matched: int


class Summary(Struct, frozen=True, kw_only=True):
    """The figures."""

    groups: GroupCounts
    sessions: SessionCounts
    rewards: Rewards
    tokens: Tokens
    rows: int
    """Delivered."""
    rows_per_session: float
    """Per session with at least one row."""
    fidelity: FidelityCounts
    calls_without_tools: int
    """Calls whose tools the policy never saw: its chat template renders none."""
    thinking_stripped: int
    """Calls that began a row because the template drops earlier reasoning; `thinking = "all"` keeps it."""
    seconds: dict[str, float]
    """Mean per session of each stage: `queue` (the wait for an engine: of calls for admission, a slot of an
    engine, or a weight update; not of sessions for a runner), `prepare`, `agent` (the agent's
    clock), `engine` (sampling; a part of `agent`), `reconstruct` (seal to grading), `grade`; `merge` is from a group's last score."""


def summarize(outcomes: Iterable[Outcome], submitted: int | None = None) -> Summary:
    """Return the figures of the groups that ended; `submitted`: how many there were (None: as many)."""
    ended = tuple(outcomes)
    members = [member for event in ended for member in event.members]
    rows = [row for _, scored in seen(members) for row in scored.trajectory.rows]
    trained = sum(1 for _, scored in seen(members) if scored.trajectory.rows)
    fidelity = Counter(row.fidelity.value for row in rows)
    merged = sum(isinstance(event, GroupMerged) for event in ended)
    return Summary(
        groups=GroupCounts(submitted=len(ended) if submitted is None else submitted, merged=merged),
        sessions=SessionCounts(
            total=len(members), by_end=dict(Counter(member.end.value if member.end else NOT_ENDED for member in members))
        ),
        rewards=_rewards(ended),
        tokens=_tokens([event.accounting for event in ended]),
        rows=len(rows),
        rows_per_session=round(len(rows) / trained, 4) if trained else 0.0,
        fidelity=FidelityCounts(fed=fidelity["fed"], matched=fidelity["matched"]),
        calls_without_tools=sum(event.accounting.calls_without_tools for event in ended),
        thinking_stripped=sum(call.root is RootReason.THINKING_STRIPPED for _, scored in seen(members) for call in scored.trajectory.calls),
        seconds=_seconds(ended),
    )


def seen(members: Iterable[Member]) -> Iterator[tuple[Member, TrajectoryScored]]:
    """Yield the members whose sessions were seen, with them."""
    for member in members:
        if member.scored is not None:
            yield member, member.scored


def ended_at(event: Outcome) -> float:
    """Return when a group ended, Unix seconds."""
    return event.merged_at if isinstance(event, GroupMerged) else event.failed_at


def stages(scored: TrajectoryScored) -> dict[str, float]:
    """Return the seconds of a session by stage, `merge` left out."""
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


def _rewards(ended: Sequence[Outcome]) -> Rewards:
    per_group = {event.group_id: tuple(member.reward for member in event.members) for event in ended}
    given = [reward for rewards in per_group.values() for reward in rewards if reward is not None]
    return Rewards(mean=sum(given) / len(given) if given else None, per_group=per_group)


def _tokens(books: Sequence[Accounting]) -> Tokens:
    left_out: Counter[str] = Counter()
    for book in books:
        left_out.update({reason.value: tokens for reason, tokens in book.left_out.items()})
    return Tokens(sampled=sum(book.sampled for book in books), delivered=sum(book.delivered for book in books), left_out=dict(left_out))


def _seconds(ended: Sequence[Outcome]) -> dict[str, float]:
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
