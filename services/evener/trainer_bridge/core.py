"""What becomes of a group: pure, from the scored trajectories of its sessions to one GroupMerged or GroupFailed."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from evener.proto.arrays import int32s, uint8s
from evener.proto.blobs import Bulk
from evener.proto.ends import CONSEQUENCES, End, LeftOut
from evener.proto.ids import session_of
from evener.proto.spec import Purpose, SessionSpec
from evener.proto.state import GroupState
from evener.proto.topics import Topic
from evener.proto.trajectories import Accounting, GroupFailed, GroupMerged, Member, TrajectoryBuilt, TrajectoryScored

TOPIC_OF: Final = {Purpose.TRAIN: Topic.MERGED, Purpose.EVAL: Topic.KEPT, Purpose.COLLECT: Topic.KEPT}
"""Nothing evaluated or collected is ever trained."""

DEAD_LETTER: Final = LeftOut.DEAD_LETTER.value
"""The `ungraded` of a session whose record could not be read."""

TOLD: Final = frozenset({End.NO_START, End.REFUSED, End.ATTEMPTS_USED_UP})
"""Ends whose detail a group's reason gives: what has to be mended outside of the agent."""

Outcome = GroupMerged | GroupFailed
Versions = Mapping[str, frozenset[int] | None]
"""By session: the versions of its trainable tokens. None: they cannot be read."""


def fold(state: GroupState | None, scored: TrajectoryScored) -> GroupState | None:
    """Return the group with this session in it. None: it was there before, and the first counts.

    A straggler of a group that has ended is only noted as seen.
    """
    trajectory = scored.trajectory
    if state is None:
        state = GroupState(group_id=trajectory.spec.group_id, size=trajectory.spec.group_size)
    if trajectory.session_id in state.seen:
        return None
    kept = state.scored if state.delivered else (*state.scored, scored)
    return msgspec.structs.replace(state, scored=kept, seen=(*state.seen, trajectory.session_id))


def complete(state: GroupState) -> bool:
    """Return whether all N sessions were seen."""
    return len(state.seen) >= state.size


def close(state: GroupState, now: float) -> GroupState:
    """Return the group as it stays after its end: session ids only, so that no straggler opens it again."""
    return msgspec.structs.replace(state, scored=(), delivered=True, delivered_at=now)


def may_end(state: GroupState) -> bool:
    """Return whether a group has to be looked at: all were seen, or enough to be delivered early."""
    if state.delivered or not state.scored:
        return False
    early = state.scored[0].trajectory.spec.early_at
    return complete(state) or (early is not None and len(state.scored) >= early)


def outcome(
    state: GroupState,
    newest: int | None,
    now: float,
    *,
    doubtful: frozenset[int] = frozenset(),
    versions: Versions | None = None,
) -> Outcome | None:
    """Return how the group ends now, or None while it has to wait (or has ended).

    `newest` is the newest published version of its policy (None: none was published), `now` Unix seconds, `doubtful` versions that
    were rolled back or are not proven yet, `versions` those of each session's trainable tokens, where they matter (`versions_matter`).
    """
    if not may_end(state):
        return None
    spec = state.scored[0].trajectory.spec
    versions = versions or {}
    reasons = {
        scored.trajectory.session_id: left_out(scored, newest, doubtful, versions.get(scored.trajectory.session_id))
        for scored in state.scored
    }
    usable = sum(reason is None for reason in reasons.values())
    broken = any(CONSEQUENCES[scored.trajectory.end].fails_task for scored in state.scored)
    enough = usable >= spec.at_least and not broken
    if enough and (complete(state) or (spec.early_at is not None and usable >= spec.early_at)):
        return _merged(state, spec, reasons, now)
    return _failed(state, spec, reasons, now) if complete(state) else None


def versions_matter(spec: SessionSpec, newest: int | None, doubtful: frozenset[int]) -> bool:
    """Return whether a session may be left out for the versions of its tokens."""
    return bool(doubtful) or (spec.max_lag is not None and newest is not None)


def left_out(
    scored: TrajectoryScored, newest: int | None, doubtful: frozenset[int] = frozenset(), versions: frozenset[int] | None = None
) -> LeftOut | None:
    """Return why a session may not be trained, or None if it may. `versions`: None where they matter: nobody knows them."""
    trajectory = scored.trajectory
    if scored.ungraded == DEAD_LETTER:
        return LeftOut.DEAD_LETTER
    if not CONSEQUENCES[trajectory.end].trainable and trajectory.spec.purpose is not Purpose.COLLECT:
        return LeftOut.END
    if trajectory.spec.purpose is Purpose.TRAIN and nothing_sampled(trajectory):
        return LeftOut.NOTHING_SAMPLED
    if scored.reward is None and not collected(trajectory.spec):
        return LeftOut.UNGRADED
    if not versions_matter(trajectory.spec, newest, doubtful):
        return None
    if versions is None or versions & doubtful:
        return LeftOut.VERSION_UNKNOWN
    lag = trajectory.spec.max_lag
    return LeftOut.STALE if lag is not None and newest is not None and versions and min(versions) < newest - lag else None


def nothing_sampled(trajectory: TrajectoryBuilt) -> bool:
    """Return whether no call of the agent itself sampled a token of the policy: whatever the reward, the policy did nothing for it."""
    own = sum(call.sampled_tokens for call in trajectory.calls if call.attempt == trajectory.attempt and call.side_call is None)
    return not trajectory.accounting.delivered and own <= trajectory.accounting.left_out.get(LeftOut.FROZEN, 0)


def collected(spec: SessionSpec) -> bool:
    """Return whether a session is kept without a reward: offline data that nobody asked to be graded."""
    return spec.purpose is Purpose.COLLECT and spec.grader.name == "none"


def versions_in(mask: Bulk, versions: Bulk) -> frozenset[int]:
    """Return the versions of a row's trainable tokens."""
    return frozenset(int32s(versions)[uint8s(mask) == 1].tolist())


def without_rows(scored: TrajectoryScored, reason: LeftOut) -> TrajectoryScored:
    """Return the session as evidence: no row that could be trained, its delivered tokens counted as left out."""
    trajectory = scored.trajectory
    books = _moved(trajectory.accounting, reason)
    return msgspec.structs.replace(scored, trajectory=msgspec.structs.replace(trajectory, rows=(), accounting=books))


def total(books: Iterable[Accounting]) -> Accounting:
    """Return the sums of several books, which balance as they do."""
    books = tuple(books)
    reasons: Counter[LeftOut] = Counter()
    for book in books:
        reasons.update(book.left_out)
    fields = ("sampled", "delivered", "lost_calls", "resampled", "reinstated", "side_calls", "failed_calls", "calls_without_tools")
    sums = {field: sum(getattr(book, field) for book in books) for field in fields}
    return Accounting(**sums, left_out=dict(sorted(reasons.items())))


def late(scored: TrajectoryScored) -> int:
    """Return the trainable tokens of a straggler that its group did not wait for."""
    return scored.trajectory.accounting.delivered


def _merged(state: GroupState, spec: SessionSpec, reasons: dict[str, LeftOut | None], now: float) -> GroupMerged:
    members, causes = _members(state, reasons), _causes(state, reasons)
    return GroupMerged(
        group_id=state.group_id,
        task_id=spec.task_id,
        run_id=spec.run_id,
        purpose=spec.purpose,
        policy=spec.policy,
        size=state.size,
        members=members,
        accounting=_books(members),
        reason=f"left out: {causes}" if causes else "",
        merged_at=now,
    )


def _failed(state: GroupState, spec: SessionSpec, reasons: dict[str, LeftOut | None], now: float) -> GroupFailed:
    members = _members(state, {session: reason or LeftOut.GROUP_FAILED for session, reason in reasons.items()})
    return GroupFailed(
        group_id=state.group_id,
        task_id=spec.task_id,
        run_id=spec.run_id,
        purpose=spec.purpose,
        policy=spec.policy,
        size=state.size,
        reason=_why(state, spec, reasons),
        members=members,
        accounting=_books(members),
        failed_at=now,
    )


def _members(state: GroupState, reasons: dict[str, LeftOut | None]) -> tuple[Member, ...]:
    seen = {scored.trajectory.spec.index: scored for scored in state.scored}
    return tuple(_member(state.group_id, index, seen.get(index), reasons) for index in range(state.size))


def _member(group_id: str, index: int, scored: TrajectoryScored | None, reasons: dict[str, LeftOut | None]) -> Member:
    if scored is None:
        return Member(session_id=session_of(group_id, index), attempt=0, left_out=LeftOut.LATE)
    trajectory = scored.trajectory
    reason = reasons[trajectory.session_id]
    return Member(
        session_id=trajectory.session_id,
        attempt=trajectory.attempt,
        end=trajectory.end,
        left_out=reason,
        reward=None if reason is LeftOut.NOTHING_SAMPLED else scored.reward,
        scored=scored if reason is None else without_rows(scored, reason),
    )


def _books(members: Iterable[Member]) -> Accounting:
    return total(member.scored.trajectory.accounting for member in members if member.scored is not None)


def _moved(books: Accounting, reason: LeftOut) -> Accounting:
    """Count the delivered tokens as left out."""
    if not books.delivered:
        return books
    moved = dict(books.left_out)
    moved[reason] = moved.get(reason, 0) + books.delivered
    return msgspec.structs.replace(books, delivered=0, left_out=moved)


def _why(state: GroupState, spec: SessionSpec, reasons: dict[str, LeftOut | None]) -> str:
    """Say for people how many sessions could be used, and of the others how many met what."""
    usable = sum(reason is None for reason in reasons.values())
    return f"{usable} of {state.size} sessions usable, {spec.at_least} needed: {_causes(state, reasons) or 'none left out'}"


def _causes(state: GroupState, reasons: dict[str, LeftOut | None]) -> str:
    """Say for people how many of a group's sessions met what, for which they are left out."""
    causes = Counter(cause for scored in state.scored if (cause := _cause(scored, reasons[scored.trajectory.session_id])))
    return ", ".join(f"{count} {cause}" for cause, count in sorted(causes.items()))


def _cause(scored: TrajectoryScored, reason: LeftOut | None) -> str | None:
    trajectory = scored.trajectory
    match reason:
        case None:
            return None
        case LeftOut.END:
            detail = trajectory.detail or (trajectory.exit.detail if trajectory.exit else "")
            return f"{trajectory.end} ({detail})" if detail and trajectory.end in TOLD else str(trajectory.end)
        case LeftOut.NOTHING_SAMPLED:
            detail = trajectory.detail or (
                "frozen engines answered its agent" if trajectory.accounting.left_out.get(LeftOut.FROZEN) else ""
            )
            return f"{reason} ({detail})" if detail else str(reason)
        case LeftOut.UNGRADED:
            return f"ungraded ({scored.ungraded})"
        case _:
            return str(reason)
