"""What becomes of a group, by the fates of its sessions."""

from collections.abc import Iterable

import pytest
from msgspec import structs
from tests.builders import T0, built, calls, group, scored

from evener.proto.ends import End, LeftOut
from evener.proto.spec import GraderSpec, Purpose
from evener.proto.state import GroupState
from evener.proto.topics import Topic
from evener.proto.trajectories import Accounting, GroupFailed, GroupMerged, TrajectoryScored
from evener.trainer_bridge.core import TOPIC_OF, Versions, close, complete, fold, outcome


def folded(sessions: Iterable[TrajectoryScored], state: GroupState | None = None) -> GroupState:
    for session in sessions:
        state = fold(state, session) or state
    assert state is not None
    return state


def ended(
    sessions: Iterable[TrajectoryScored], newest: int | None = None, versions: Versions | None = None
) -> GroupMerged | GroupFailed | None:
    return outcome(folded(sessions), newest, T0 + 10, versions=versions)


def test_whole_group_is_merged_with_every_session_by_index() -> None:
    """Sessions arrive in any order and leave by index, rows included."""
    merged = ended(reversed(group((1.0, 0.0, 0.5, 1.0))))

    assert isinstance(merged, GroupMerged)
    assert [member.session_id for member in merged.members] == [f"fix-the-bug.{index}" for index in range(4)]
    assert [member.reward for member in merged.members] == [1.0, 0.0, 0.5, 1.0]
    assert all(member.scored is not None and member.scored.trajectory.rows for member in merged.members)
    assert (merged.accounting.sampled, merged.accounting.delivered) == (40, 40)


def test_group_waits_for_its_last_session() -> None:
    assert ended(group()[:3]) is None


def test_repeated_session_changes_nothing() -> None:
    """The first TrajectoryScored of a session counts, whatever a later one says."""
    state = folded(group()[:1])

    assert fold(state, scored(built(index=0), reward=0.0)) is None


def test_session_left_out_stays_as_evidence_without_rows() -> None:
    """Its reward-less record is kept and its tokens are counted; nothing of it can be trained."""
    merged = ended(group((1.0, 0.0, None, 1.0)))

    assert isinstance(merged, GroupMerged)
    member = merged.members[2]
    assert member.left_out is LeftOut.UNGRADED
    assert member.scored is not None
    assert member.scored.trajectory.rows == ()
    assert member.scored.trajectory.accounting.left_out == {LeftOut.UNGRADED: 10}
    assert merged.accounting.delivered == 30
    assert merged.accounting.left_out == {LeftOut.UNGRADED: 10}


def test_group_with_too_few_usable_sessions_fails_and_says_why() -> None:
    """The reason counts what the others met; the usable session's tokens are left out with the group."""
    ends = (End.FINISHED, End.FINISHED, End.CANCELLED, End.CANCELLED)
    rewards = (1.0, None, None, None)
    sessions = [scored(built(index=index, end=end), reward=rewards[index]) for index, end in enumerate(ends)]
    failed = ended(sessions)

    assert isinstance(failed, GroupFailed)
    assert failed.reason == "1 of 4 sessions usable, 2 needed: 2 cancelled, 1 ungraded (the grader gave no reward)"
    assert [member.left_out for member in failed.members] == [LeftOut.GROUP_FAILED, LeftOut.UNGRADED, LeftOut.END, LeftOut.END]
    assert failed.accounting.delivered == 0
    assert failed.accounting.left_out == {LeftOut.GROUP_FAILED: 10, LeftOut.UNGRADED: 10, LeftOut.END: 20}


def test_session_that_could_not_start_fails_its_group_with_the_reason() -> None:
    """Nothing another attempt could mend: the task fails, however many others were usable."""
    broken = scored(built(index=3, end=End.NO_START, given={"detail": "harness `pi` is not installed"}), reward=None)
    failed = ended((*group()[:3], broken))

    assert isinstance(failed, GroupFailed)
    assert "1 no_start (harness `pi` is not installed)" in failed.reason


def test_group_is_delivered_early_and_stragglers_do_not_open_it_again() -> None:
    """M of N usable: merged, the unseen named as late; then every straggler is only noted."""
    sessions = group(early_at=2)
    state = folded(sessions[:2])
    merged = outcome(state, None, T0)

    assert isinstance(merged, GroupMerged)
    assert [member.left_out for member in merged.members] == [None, None, LeftOut.LATE, LeftOut.LATE]
    assert [member.session_id for member in merged.members] == [f"fix-the-bug.{index}" for index in range(4)]
    state = folded(sessions[2:], close(state, T0))
    assert complete(state)
    assert outcome(state, None, T0) is None
    assert state.scored == ()
    assert fold(state, sessions[3]) is None


def test_early_delivery_counts_usable_sessions_only() -> None:
    assert ended(group((1.0, None, None, 1.0), early_at=2)[:3]) is None


@pytest.mark.parametrize(("newest", "stale"), [(None, False), (5, False), (6, True)])
def test_session_is_stale_by_the_newest_published_version(newest: int | None, stale: bool) -> None:  # noqa: FBT001 -- a parametrised expectation
    """max_lag 2 and tokens of version 3: version 5 may still use them, 6 may not."""
    sessions = (
        scored(built(index=0, size=3, version=3, max_lag=2)),
        *(scored(built(index=index, size=3, version=5, max_lag=2)) for index in (1, 2)),
    )
    merged = ended(sessions, newest, {"fix-the-bug.0": frozenset({3, 5}), "fix-the-bug.1": frozenset({5}), "fix-the-bug.2": frozenset()})

    assert isinstance(merged, GroupMerged)
    assert merged.members[0].left_out is (LeftOut.STALE if stale else None)
    assert merged.accounting.left_out == ({LeftOut.STALE: 10} if stale else {})


def test_unreadable_session_is_counted_as_a_dead_letter() -> None:
    lost = scored(built(index=3, given={"rows": ()}), reward=None, ungraded="dead_letter")
    merged = ended((*group()[:3], lost))

    assert isinstance(merged, GroupMerged)
    assert merged.members[3].left_out is LeftOut.DEAD_LETTER


def test_only_purpose_train_reaches_trainers() -> None:
    assert {purpose for purpose, topic in TOPIC_OF.items() if topic is Topic.MERGED} == {Purpose.TRAIN}


def test_recording_that_nobody_grades_is_kept_with_its_rows() -> None:
    """Offline data needs no reward; a training group does."""
    for purpose, merged in ((Purpose.COLLECT, True), (Purpose.TRAIN, False)):
        alone = built(size=1, purpose=purpose, grader=GraderSpec(name="none"), at_least=1)
        event = ended([scored(alone, reward=None)])
        assert isinstance(event, GroupMerged) is merged
        if isinstance(event, GroupMerged):
            assert event.members[0].scored is not None
            assert event.members[0].scored.trajectory.rows


def silent(index: int, *, detail: str, end: End = End.HARNESS_FAILED, side_tokens: int = 0) -> TrajectoryScored:
    """Return a graded session whose agent sampled nothing; a side call of it may have."""
    left_out = {LeftOut.SIDE_CALL: side_tokens} if side_tokens else {}
    made = tuple(structs.replace(call, side_call="title") for call in calls([(12, side_tokens)])) if side_tokens else ()
    books = Accounting(sampled=side_tokens, left_out=left_out)
    given = {"rows": (), "calls": made, "accounting": books, "detail": detail}
    return scored(built(index=index, end=end, given=given), reward=0.0)


@pytest.mark.parametrize("side_tokens", [0, 7])
def test_session_without_a_sampled_token_enters_no_baseline(side_tokens: int) -> None:
    """Its reward is not the policy's: neither the member's reward nor a row of it reaches a trainer; its record says why."""
    merged = ended((*group((1.0, 0.0, 1.0, 0.0))[:3], silent(3, detail="its harness made no model call", side_tokens=side_tokens)))

    assert isinstance(merged, GroupMerged)
    assert [member.reward for member in merged.members] == [1.0, 0.0, 1.0, None]
    assert merged.members[3].left_out is LeftOut.NOTHING_SAMPLED
    assert merged.reason == "left out: 1 nothing_sampled (its harness made no model call)"
    assert merged.accounting.delivered == 30


def test_evaluation_counts_sessions_that_sampled_nothing() -> None:
    """Nothing of it is trained, and leaving them out would make the policy look better than it is."""
    members = [structs.replace(silent(0, detail="its harness made no model call"), reward=0.0), *group((1.0, 1.0, 1.0, 1.0))[1:]]
    kept = ended(
        structs.replace(
            scored, trajectory=structs.replace(scored.trajectory, spec=structs.replace(scored.trajectory.spec, purpose=Purpose.EVAL))
        )
        for scored in members
    )

    assert isinstance(kept, GroupMerged)
    assert [(member.reward, member.left_out) for member in kept.members] == [(0.0, None), (1.0, None), (1.0, None), (1.0, None)]


def test_group_of_sessions_that_sampled_nothing_fails_and_says_why() -> None:
    """The first prompt fits in none of them: a group of zeros would teach nothing, and says nothing about the policy."""
    detail = "its first prompt did not fit the context: this model's maximum context length is 4096 tokens; the messages have 9000"
    failed = ended([silent(index, detail=detail, end=End.CONTEXT_OVERFLOW) for index in range(4)])

    assert isinstance(failed, GroupFailed)
    assert failed.reason == f"0 of 4 sessions usable, 2 needed: 4 nothing_sampled ({detail})"


@pytest.mark.parametrize(("purpose", "kept"), [(Purpose.TRAIN, False), (Purpose.EVAL, True)])
def test_tokens_of_a_frozen_engine_are_not_the_policys(purpose: Purpose, *, kept: bool) -> None:
    """A model map may send the agent elsewhere: its reward teaches the policy nothing. Evaluation compares with such engines."""
    given = {"rows": (), "accounting": Accounting(sampled=10, left_out={LeftOut.FROZEN: 10}), "detail": ""}
    sessions = [scored(built(index=index, purpose=purpose)) for index in range(3)]
    merged = ended([*sessions, scored(built(index=3, purpose=purpose, given=given))])

    assert isinstance(merged, GroupMerged)
    assert merged.members[3].left_out is (None if kept else LeftOut.NOTHING_SAMPLED)
    assert merged.reason == ("" if kept else "left out: 1 nothing_sampled (frozen engines answered its agent)")


def test_sampled_tokens_that_are_all_masked_are_not_nothing() -> None:
    """The agent acted; that no token of it can be trained is another matter."""
    masked = {"rows": (), "accounting": Accounting(sampled=10, left_out={LeftOut.CONSTRAINED: 10})}
    merged = ended((*group()[:3], scored(built(index=3, given=masked))))

    assert isinstance(merged, GroupMerged)
    assert merged.members[3].left_out is None


def test_refused_session_is_named_with_what_was_refused() -> None:
    refused = scored(built(index=3, end=End.REFUSED, given={"detail": "stop: stop strings are not supported"}), reward=None)
    merged = ended((*group()[:3], refused))

    assert isinstance(merged, GroupMerged)
    assert merged.members[3].left_out is LeftOut.END
    assert merged.reason == "left out: 1 refused (stop: stop strings are not supported)"


@pytest.mark.parametrize(("purpose", "left_out"), [(Purpose.COLLECT, None), (Purpose.TRAIN, LeftOut.END)])
def test_collection_keeps_the_rows_of_a_session_that_did_not_end_well(purpose: Purpose, left_out: LeftOut | None) -> None:
    """Nothing of it is trained, so no end of it is a reason to leave rows out."""
    alone = built(size=1, purpose=purpose, grader=GraderSpec(name="none"), at_least=1, end=End.ATTEMPTS_USED_UP)
    event = ended([scored(alone, reward=None)])

    assert event is not None
    assert event.members[0].left_out is left_out
