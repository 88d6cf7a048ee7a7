"""What becomes of a group, by the fates of its sessions."""

import pytest
from msgspec import structs
from tests.support.builders import T0, built, calls, decided, ended, group, scored

from evener.proto.reasons import CallFailure, ExclusionReason, TerminationReason
from evener.proto.spec import GraderSpec, Purpose
from evener.proto.topics import GROUP_TOPIC, Topic
from evener.proto.trajectories import Accounting, GroupFailed, GroupMerged, TrajectoryScored
from evener.trainer_bridge.core import as_read, close, complete, fold, member_of
from evener.trainer_bridge.rules import Fate, PolicyVersions, decision_for


def test_whole_group_is_merged_with_every_session_by_index() -> None:
    """Sessions arrive in any order and leave by index, rows included."""
    merged = ended(reversed(group((1.0, 0.0, 0.5, 1.0))))

    assert isinstance(merged, GroupMerged)
    assert [member.session_id for member in merged.members] == [f"fix-the-bug.{index}" for index in range(4)]
    assert [member.reward for member in merged.members] == [1.0, 0.0, 0.5, 1.0]
    assert all(member.scored is not None and member.scored.trajectory.rows for member in merged.members)
    assert (merged.accounting.sampled, merged.accounting.delivered) == (40, 40)


def test_group_waits_for_its_last_session() -> None:
    assert decided(group()[:3]) is None


def test_repeated_session_changes_nothing() -> None:
    """The first TrajectoryScored of a session counts, whatever a later one says."""
    state = fold(None, group()[0])

    assert fold(state, scored(built(index=0), reward=0.0)) is None


def test_session_excluded_stays_as_evidence_without_rows() -> None:
    """Its reward-less record is kept and its tokens are counted; nothing of it can be trained."""
    merged = ended(group((1.0, 0.0, None, 1.0)))

    assert isinstance(merged, GroupMerged)
    member = merged.members[2]
    assert member.excluded is ExclusionReason.UNGRADED
    assert member.scored is not None
    assert member.scored.trajectory.rows == ()
    assert member.scored.trajectory.accounting.excluded == {ExclusionReason.UNGRADED: 10}
    assert merged.accounting.delivered == 30
    assert merged.accounting.excluded == {ExclusionReason.UNGRADED: 10}


def test_group_with_too_few_usable_sessions_fails_and_says_why() -> None:
    """The reason counts what the others met; the usable session's tokens are left out with the group."""
    ends = (TerminationReason.FINISHED, TerminationReason.FINISHED, TerminationReason.CANCELLED, TerminationReason.CANCELLED)
    rewards = (1.0, None, None, None)
    sessions = [scored(built(index=index, end=end), reward=rewards[index]) for index, end in enumerate(ends)]
    failed = ended(sessions)

    assert isinstance(failed, GroupFailed)
    assert failed.reason == "1 of 4 sessions usable, 2 needed: 2 cancelled, 1 ungraded (the grader gave no reward)"
    assert [member.excluded for member in failed.members] == [
        ExclusionReason.GROUP_FAILED,
        ExclusionReason.UNGRADED,
        ExclusionReason.UNTRAINABLE_END,
        ExclusionReason.UNTRAINABLE_END,
    ]
    assert failed.accounting.delivered == 0
    assert failed.accounting.excluded == {
        ExclusionReason.GROUP_FAILED: 10,
        ExclusionReason.UNGRADED: 10,
        ExclusionReason.UNTRAINABLE_END: 20,
    }


def test_session_that_could_not_start_fails_its_group_with_the_reason() -> None:
    """Nothing another attempt could mend: the task fails, however many others were usable."""
    broken = scored(built(index=3, end=TerminationReason.NO_START, given={"detail": "harness `pi` is not installed"}), reward=None)
    failed = ended((*group()[:3], broken))

    assert isinstance(failed, GroupFailed)
    assert "1 no_start (harness `pi` is not installed)" in failed.reason


def test_group_is_delivered_early_and_stragglers_do_not_open_it_again() -> None:
    """M of N usable: merged, the unseen named as late; then a straggler changes nothing but what can be asked of it."""
    sessions = group(deliver_early_at=2)
    merged = ended(sessions[:2])

    assert isinstance(merged, GroupMerged)
    assert [member.excluded for member in merged.members] == [None, None, ExclusionReason.LATE, ExclusionReason.LATE]
    assert [member.session_id for member in merged.members] == [f"fix-the-bug.{index}" for index in range(4)]
    state = fold(fold(None, sessions[0]), sessions[1])
    assert state is not None
    state = close(state, T0, 7)
    for straggler in sessions[2:]:
        state = fold(state, straggler)
        assert state is not None
    assert complete(state)
    assert [member.index for member in state.scored] == [2, 3]
    assert (state.ended_at, state.offset) == (T0, 7)
    assert fold(state, sessions[3]) is None


def test_early_delivery_counts_usable_sessions_only() -> None:
    assert decided(group((1.0, None, None, 1.0), deliver_early_at=2)[:3]) is None


@pytest.mark.parametrize(("newest", "stale"), [(None, False), (5, False), (6, True)])
def test_session_is_stale_by_the_newest_published_version(newest: int | None, stale: bool) -> None:  # noqa: FBT001 -- a parametrised expectation
    """max_staleness 2 and tokens of version 3: version 5 may still use them, 6 may not."""
    versions: tuple[tuple[int, ...], ...] = ((3, 5), (5,), ())
    merged = ended(
        (scored(built(index=index, size=3, given={"versions": of}, max_staleness=2)) for index, of in enumerate(versions)), newest
    )

    assert isinstance(merged, GroupMerged)
    assert merged.members[0].excluded is (ExclusionReason.STALE if stale else None)
    assert merged.accounting.excluded == ({ExclusionReason.STALE: 10} if stale else {})


def test_unreadable_session_is_counted_as_a_dead_letter() -> None:
    lost = scored(built(index=3, given={"rows": ()}), reward=None, ungraded="dead_letter")
    merged = ended((*group()[:3], lost))

    assert isinstance(merged, GroupMerged)
    assert merged.members[3].excluded is ExclusionReason.DEAD_LETTER


def test_session_whose_record_is_gone_when_its_group_ends_is_excluded() -> None:
    """The rules are asked again: what was enough before may not be enough without it."""
    sessions = group((1.0, 0.0, 1.0), min_usable=3)
    state = fold(fold(fold(None, sessions[0]), sessions[1]), sessions[2])
    assert state is not None
    assert decision_for(state, PolicyVersions()).fate is Fate.DELIVER
    state = as_read(state, {0: sessions[0], 1: None, 2: sessions[2]})

    decision = decision_for(state, PolicyVersions())
    assert (decision.fate, decision.excluded) == (Fate.FAIL, {1: ExclusionReason.DEAD_LETTER})


def test_state_of_a_group_does_not_grow_with_its_trajectories() -> None:
    """What it holds of a session of megabytes is as large as of one of ten tokens."""
    small, large = member_of(group()[0]), member_of(scored(built(turns=((200_000, 1000),))))

    assert small == large


def test_only_purpose_train_reaches_trainers() -> None:
    assert {purpose for purpose, topic in GROUP_TOPIC.items() if topic is Topic.MERGED} == {Purpose.TRAIN}


def test_recording_that_nobody_grades_is_kept_with_its_rows() -> None:
    """Offline data needs no reward; a training group does."""
    for purpose, merged in ((Purpose.COLLECT, True), (Purpose.TRAIN, False)):
        alone = built(size=1, purpose=purpose, grader=GraderSpec(name="none"), min_usable=1)
        event = ended([scored(alone, reward=None)])
        assert isinstance(event, GroupMerged) is merged
        if isinstance(event, GroupMerged):
            assert event.members[0].scored is not None
            assert event.members[0].scored.trajectory.rows


def silent(index: int, *, detail: str, end: TerminationReason = TerminationReason.HARNESS_FAILED, side_tokens: int = 0) -> TrajectoryScored:
    """Return a graded session whose agent sampled nothing; a side call of it may have."""
    excluded = {ExclusionReason.SIDE_CALL: side_tokens} if side_tokens else {}
    made = tuple(structs.replace(call, side_call="title") for call in calls([(12, side_tokens)])) if side_tokens else ()
    books = Accounting(sampled=side_tokens, excluded=excluded)
    given = {"rows": (), "calls": made, "accounting": books, "detail": detail}
    return scored(built(index=index, end=end, given=given), reward=0.0)


@pytest.mark.parametrize("side_tokens", [0, 7])
def test_session_without_a_sampled_token_enters_no_baseline(side_tokens: int) -> None:
    """Its reward is not the policy's: neither the member's reward nor a row of it reaches a trainer; its record says why."""
    merged = ended((*group((1.0, 0.0, 1.0, 0.0))[:3], silent(3, detail="its harness made no model call", side_tokens=side_tokens)))

    assert isinstance(merged, GroupMerged)
    assert [member.reward for member in merged.members] == [1.0, 0.0, 1.0, None]
    assert merged.members[3].excluded is ExclusionReason.NOTHING_SAMPLED
    assert merged.reason == "excluded: 1 nothing_sampled (its harness made no model call)"
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
    assert [(member.reward, member.excluded) for member in kept.members] == [(0.0, None), (1.0, None), (1.0, None), (1.0, None)]


def test_group_of_sessions_that_sampled_nothing_fails_and_says_why() -> None:
    """The first prompt fits in none of them: a group of zeros would teach nothing, and says nothing about the policy."""
    detail = "its first prompt did not fit the context: this model's maximum context length is 4096 tokens; the messages have 9000"
    failed = ended([silent(index, detail=detail, end=TerminationReason.CONTEXT_OVERFLOW) for index in range(4)])

    assert isinstance(failed, GroupFailed)
    assert failed.reason == f"0 of 4 sessions usable, 2 needed: 4 nothing_sampled ({detail})"


@pytest.mark.parametrize(("purpose", "kept"), [(Purpose.TRAIN, False), (Purpose.EVAL, True)])
def test_tokens_of_a_frozen_engine_are_not_the_policys(purpose: Purpose, *, kept: bool) -> None:
    """A model map may send the agent elsewhere: its reward teaches the policy nothing. Evaluation compares with such engines.

    The first of these engines' calls failed, and was tried again.
    """
    first, second = (structs.replace(call, frozen=True) for call in calls([(12, 5), (5, 10)]))
    made = (structs.replace(first, failure=CallFailure.ENGINE_UNREACHABLE), second)
    books = Accounting(sampled=15, excluded={ExclusionReason.FROZEN: 10, ExclusionReason.FAILED_TRY: 5})
    given = {"rows": (), "calls": made, "accounting": books, "detail": ""}
    sessions = [scored(built(index=index, purpose=purpose)) for index in range(3)]
    merged = ended([*sessions, scored(built(index=3, purpose=purpose, given=given))])

    assert isinstance(merged, GroupMerged)
    assert merged.members[3].excluded is (None if kept else ExclusionReason.NOTHING_SAMPLED)
    assert merged.reason == ("" if kept else "excluded: 1 nothing_sampled (frozen engines answered its agent)")


def test_sampled_tokens_that_are_all_masked_are_not_nothing() -> None:
    """The agent acted; that no token of it can be trained is another matter."""
    masked = {"rows": (), "accounting": Accounting(sampled=10, excluded={ExclusionReason.CONSTRAINED: 10})}
    merged = ended((*group()[:3], scored(built(index=3, given=masked))))

    assert isinstance(merged, GroupMerged)
    assert merged.members[3].excluded is None


def test_refused_session_is_named_with_what_was_refused() -> None:
    refused = scored(built(index=3, end=TerminationReason.REFUSED, given={"detail": "stop: stop strings are not supported"}), reward=None)
    merged = ended((*group()[:3], refused))

    assert isinstance(merged, GroupMerged)
    assert merged.members[3].excluded is ExclusionReason.UNTRAINABLE_END
    assert merged.reason == "excluded: 1 refused (stop: stop strings are not supported)"


@pytest.mark.parametrize(("purpose", "excluded"), [(Purpose.COLLECT, None), (Purpose.TRAIN, ExclusionReason.UNTRAINABLE_END)])
def test_collection_keeps_the_rows_of_a_session_that_did_not_end_well(purpose: Purpose, excluded: ExclusionReason | None) -> None:
    """Nothing of it is trained, so no end of it is a reason to leave rows out."""
    alone = built(size=1, purpose=purpose, grader=GraderSpec(name="none"), min_usable=1, end=TerminationReason.ATTEMPTS_USED_UP)
    event = ended([scored(alone, reward=None)])

    assert event.members[0].excluded is excluded
