"""Decides how a group ends: from the scored trajectories of its sessions to one GroupMerged or GroupFailed. Pure.

The state of a group holds what the rules need of each session (`ScoredMember`). The sessions themselves are read once, when the group ends.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec.structs import replace

from evener.proto.fields import shared_fields
from evener.proto.ids import session_of
from evener.proto.reasons import END_POLICY, ExclusionReason, TerminationReason
from evener.proto.spec import Purpose, SessionSpec
from evener.proto.state import GroupState, ScoredMember
from evener.proto.trajectories import Accounting, GroupFailed, GroupMerged, GroupOutcome, Member, TrajectoryScored
from evener.tokens.trajectory import nothing_sampled
from evener.trainer_bridge.rules import Fate, GroupDecision

DEAD_LETTER: Final = ExclusionReason.DEAD_LETTER.value
"""The `ungraded` value of a session whose record could not be read."""

EXPLAINED_REASONS: Final = frozenset({TerminationReason.NO_START, TerminationReason.REFUSED, TerminationReason.ATTEMPTS_USED_UP})
"""The termination reasons whose detail is part of a group's reason: the cause lies outside of the agent and has to be mended."""

NOT_DELIVERED: Final = {Fate.FAIL: ExclusionReason.GROUP_FAILED, Fate.DROP: ExclusionReason.GROUP_DROPPED}
"""Why the usable sessions of a group that is not delivered are excluded."""

Sessions = Mapping[int, TrajectoryScored | None]
"""The scored sessions of a group, by index. None: neither the session's record nor the log can be read any more."""


def fold(state: GroupState | None, scored: TrajectoryScored) -> GroupState | None:
    """Return the group with this session in it. None: the group has the session already; its first score counts.

    A session that arrives after its group has ended changes nothing but what can be asked of it.
    """
    spec = scored.trajectory.spec
    if state is None:
        state = _opened(spec)
    if spec.index in state.seen:
        return None
    return replace(state, scored=(*state.scored, member_of(scored)), seen=(*state.seen, spec.index))


def complete(state: GroupState) -> bool:
    """Return whether all N sessions were seen."""
    return len(state.seen) >= state.size


def close(state: GroupState, now: float, offset: int) -> GroupState:
    """Return the state of a group after its end, which late sessions do not open again. `offset`: see `GroupState.offset`."""
    return replace(state, scored=(), ended_at=now, offset=offset)


def member_of(scored: TrajectoryScored) -> ScoredMember:
    """Return the part of a session that the rules need."""
    trajectory = scored.trajectory
    return ScoredMember(
        index=trajectory.spec.index,
        excluded=excluded(scored),
        fails_group=END_POLICY[trajectory.termination_reason].fails_task,
        reward=scored.reward,
        versions=trajectory.versions,
    )


def as_read(state: GroupState, sessions: Sessions) -> GroupState:
    """Return the group with the exclusions of its sessions as they were read now: a session's record may be lost since it was scored."""

    def found(member: ScoredMember) -> ScoredMember:
        scored = sessions[member.index]
        return replace(member, excluded=ExclusionReason.DEAD_LETTER if scored is None else excluded(scored))

    return replace(state, scored=tuple(map(found, state.scored)))


def excluded(scored: TrajectoryScored) -> ExclusionReason | None:
    """Return why a session cannot be used, apart from the versions of its tokens. None: it can be used."""
    trajectory = scored.trajectory
    if scored.ungraded == DEAD_LETTER:
        return ExclusionReason.DEAD_LETTER
    if not END_POLICY[trajectory.termination_reason].trainable and trajectory.spec.purpose is not Purpose.COLLECT:
        return ExclusionReason.UNTRAINABLE_END
    if trajectory.spec.purpose is Purpose.TRAIN and nothing_sampled(trajectory):
        return ExclusionReason.NOTHING_SAMPLED
    return ExclusionReason.UNGRADED if scored.reward is None and not collected(trajectory.spec) else None


def collected(spec: SessionSpec) -> bool:
    """Return whether a session is kept without a reward: offline data for which no grader was named."""
    return spec.purpose is Purpose.COLLECT and spec.grader.name == "none"


def outcome(state: GroupState, decision: GroupDecision, sessions: Sessions, now: float) -> GroupOutcome:
    """Return the record of a group that ends with a decision of the rules. `now`: Unix seconds."""
    instead = NOT_DELIVERED.get(decision.fate)
    members = tuple(_member(state, index, sessions.get(index), decision.excluded.get(index, instead)) for index in range(state.size))
    causes = _causes(sessions, decision)
    accounting = total(member.scored.trajectory.accounting for member in members if member.scored is not None)
    common: dict[str, Any] = {**shared_fields(state, GroupMerged), "members": members, "accounting": accounting}
    if decision.fate is Fate.DELIVER:
        return GroupMerged(**common, reason=f"excluded: {causes}" if causes else "", merged_at=now)
    dropped_by = decision.rule if decision.fate is Fate.DROP else None
    return GroupFailed(**common, reason=f"{decision.reason}: {causes or 'none excluded'}", dropped_by=dropped_by, failed_at=now)


def without_rows(scored: TrajectoryScored, reason: ExclusionReason) -> TrajectoryScored:
    """Return the session without rows that could be trained. Its delivered tokens count as excluded."""
    trajectory = scored.trajectory
    accounting = trajectory.accounting
    if accounting.delivered:
        moved = {**accounting.excluded, reason: accounting.excluded.get(reason, 0) + accounting.delivered}
        accounting = replace(accounting, delivered=0, excluded=moved)
    return replace(scored, trajectory=replace(trajectory, rows=(), versions=(), accounting=accounting))


def total(accountings: Iterable[Accounting]) -> Accounting:
    """Return the sum of several accountings. It balances if each of them does."""
    counts, reasons = Counter[str](), Counter[ExclusionReason]()
    for accounting in accountings:
        counts.update({field: getattr(accounting, field) for field in Accounting.__struct_fields__ if field != "excluded"})
        reasons.update(accounting.excluded)
    return Accounting(**counts, excluded=dict(sorted(reasons.items())))


def _opened(spec: SessionSpec) -> GroupState:
    return GroupState(**shared_fields(spec, GroupState), size=spec.group_size, options=spec.group)


def _member(state: GroupState, index: int, scored: TrajectoryScored | None, reason: ExclusionReason | None) -> Member:
    if scored is None:
        unread = reason if index in state.seen else None
        return Member(session_id=session_of(state.group_id, index), attempt=0, excluded=unread or ExclusionReason.LATE)
    trajectory = scored.trajectory
    return Member(
        **shared_fields(trajectory, Member),
        excluded=reason,
        reward=None if reason is ExclusionReason.NOTHING_SAMPLED else scored.reward,
        scored=scored if reason is None else without_rows(scored, reason),
    )


def _causes(sessions: Sessions, decision: GroupDecision) -> str:
    """Return a sentence part for the group's reason: how many sessions were excluded for which cause."""
    causes = Counter(_cause(sessions.get(index), reason) for index, reason in decision.excluded.items())
    return ", ".join(f"{count} {cause}" for cause, count in sorted(causes.items()))


def _cause(scored: TrajectoryScored | None, reason: ExclusionReason) -> str:
    if scored is None:
        return str(reason)
    trajectory, what, detail = scored.trajectory, str(reason), ""
    match reason:
        case ExclusionReason.UNTRAINABLE_END:
            what = str(trajectory.termination_reason)
            if trajectory.termination_reason in EXPLAINED_REASONS:
                detail = trajectory.detail or (trajectory.exit.detail if trajectory.exit else "")
        case ExclusionReason.NOTHING_SAMPLED:
            frozen = trajectory.accounting.excluded.get(ExclusionReason.FROZEN)
            detail = trajectory.detail or ("frozen engines answered its agent" if frozen else "")
        case ExclusionReason.UNGRADED:
            detail = scored.ungraded or ""
        case _:
            pass
    return f"{what} ({detail})" if detail else what
