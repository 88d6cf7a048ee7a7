"""Any interleaving, repetition and restart of a group's sessions: delivered at most once, ended once, books balanced."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.support.builders import built, scored

from evener.proto.codec import decode, encode
from evener.proto.reasons import ExclusionReason, TerminationReason
from evener.proto.state import GroupState
from evener.proto.trajectories import GroupFailed, GroupMerged, GroupOutcome, TrajectoryScored
from evener.trainer_bridge.core import close, complete, fold, outcome
from evener.trainer_bridge.rules import Fate, PolicyVersions, decision_for

ENDS = st.sampled_from(
    [
        TerminationReason.FINISHED,
        TerminationReason.FINISHED,
        TerminationReason.AGENT_TIME,
        TerminationReason.WALL_TIME,
        TerminationReason.CANCELLED,
        TerminationReason.NO_START,
    ]
)
REWARDS = st.sampled_from([0.0, 1.0, 0.25, None])


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[TrajectoryScored], list[int]]:
    """Sessions of one group, and the order in which they are read: each at least once, some again."""
    size = draw(st.integers(1, 6))
    options: dict[str, Any] = {
        "deliver_early_at": draw(st.one_of(st.none(), st.integers(1, size))),
        "min_usable": draw(st.integers(1, size)),
        "max_staleness": draw(st.sampled_from([None, 1])),
        "drop_zero_variance": draw(st.booleans()),
    }
    sessions = [
        scored(built("g", index, size=size, end=draw(ENDS), version=draw(st.integers(0, 4)), **options), reward=draw(REWARDS))
        for index in range(size)
    ]
    again = draw(st.lists(st.integers(0, size - 1), max_size=size))
    return sessions, draw(st.permutations([*range(size), *again]))


@given(groups(), st.sets(st.integers(0, 12)), st.sampled_from([None, 0, 3, 5]))
def test_group_ends_once_and_delivers_each_session_at_most_once(
    case: tuple[list[TrajectoryScored], list[int]], restarts: set[int], newest: int | None
) -> None:
    sessions, order = case
    ended, state = played(sessions, order, restarts, newest)

    assert len(ended) == 1
    assert state is not None
    assert state.ended_at is not None
    assert complete(state)
    assert [member.session_id for member in ended[0].members] == [session.trajectory.session_id for session in sessions]
    check_books(ended[0])


def played(
    sessions: list[TrajectoryScored], order: list[int], restarts: set[int], newest: int | None
) -> tuple[list[GroupOutcome], GroupState | None]:
    """Read the sessions in this order; before the steps in `restarts` the state is read back from its bytes."""
    ended: list[GroupOutcome] = []
    state: GroupState | None = None
    for step, index in enumerate(order):
        if step in restarts and state is not None:
            restored = decode(encode(state))
            assert isinstance(restored, GroupState)
            assert restored == state
            state = restored
        after = fold(state, sessions[index])
        if after is None:
            continue
        state = after
        if state.ended_at is None and (decision := decision_for(state, PolicyVersions(newest))).fate is not Fate.WAIT:
            read = {member.index: sessions[member.index] for member in state.scored}
            ended.append(outcome(state, decision, read, float(step)))
            state = close(state, float(step), step)
    return ended, state


def check_books(event: GroupOutcome) -> None:
    """What is delivered is in rows of members that are not left out, and nothing else is."""
    delivered = 0
    for member in event.members:
        if member.scored is None:
            assert member.excluded is ExclusionReason.LATE
            continue
        if member.excluded is not None:
            assert member.scored.trajectory.rows == ()
        delivered += sum(row.loss_mask.count(1) for row in member.scored.trajectory.rows if isinstance(row.loss_mask, bytes))
    books = event.accounting
    assert books.delivered == delivered
    assert books.delivered + sum(books.excluded.values()) == books.sampled
    usable = sum(member.excluded is None for member in event.members)
    assert usable == 0 if isinstance(event, GroupFailed) else usable >= 1
    assert isinstance(event, GroupMerged | GroupFailed)
    assert msgspec.structs.asdict(books)["sampled"] == sum(
        member.scored.trajectory.accounting.sampled for member in event.members if member.scored is not None
    )
