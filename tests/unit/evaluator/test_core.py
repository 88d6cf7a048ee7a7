"""What to do with a trajectory."""

import pytest
from tests.support.builders import built

from evener.evaluator.core import gives_up, not_graded, of_try, score
from evener.graders.port import Grade, GraderError, GraderRefused
from evener.proto.codec import decode, encode
from evener.proto.reasons import END_POLICY, TerminationReason
from evener.proto.spec import GraderSpec, Purpose
from evener.proto.trajectories import Accounting


@pytest.mark.parametrize("end", list(TerminationReason))
def test_every_end_is_graded_as_the_table_says(end: TerminationReason) -> None:
    """An end that is not graded is the reason that stands in the score."""
    reason = not_graded(built(end=end, given={"detail": "so it was"}))

    assert (reason is None) is END_POLICY[end].grade
    assert reason is None or reason == f"{end}: so it was"


def test_failed_grading_is_tried_again_so_often_as_the_task_says() -> None:
    trajectory = built(grader=GraderSpec(name="harbor", tries=2))

    assert not gives_up(trajectory, GraderError("crashed"), 1)
    assert gives_up(trajectory, GraderError("crashed"), 2)


def test_grader_that_refuses_is_not_asked_again() -> None:
    assert gives_up(built(), GraderRefused("no such option"), 1)


def test_reason_that_names_a_file_of_any_bytes_can_be_written() -> None:
    """An event that cannot be encoded would end the evaluator at this session for good."""
    event = score(built(), Grade(reward=None, ungraded="no such file: \udcff"), (), seconds=0.0, tries=1, now=0.0)
    assert decode(encode(event)) == event
    assert event.ungraded == "no such file: \\udcff"


def test_end_without_a_detail_is_its_own_reason() -> None:
    assert not_graded(built(end=TerminationReason.CANCELLED)) == "cancelled"


def test_evidence_of_a_failed_try_does_not_stand_in_the_way_of_a_later_one() -> None:
    """Each try writes the same names; why it failed stands beside them, whatever its bytes."""
    kept = of_try(1, {"test-stdout.txt": b"said"}, "exited with 7: \udcff") | of_try(2, {"test-stdout.txt": b"said again"}, "again")

    assert kept == {
        "try-1/test-stdout.txt": b"said",
        "try-1/error.txt": b"exited with 7: ?",
        "try-2/test-stdout.txt": b"said again",
        "try-2/error.txt": b"again",
    }


def test_score_carries_the_trajectory_as_it_was_built() -> None:
    """With the grade, what it cost, and the name of who gave it."""
    trajectory = built(grader=GraderSpec(name="harbor"))
    event = score(trajectory, Grade(reward=0.5, rewards={"reward": 0.5, "style": 1.0}), (), seconds=2.0, tries=2, now=7.0)

    assert event.trajectory is trajectory
    assert (event.reward, event.rewards, event.ungraded) == (0.5, {"reward": 0.5, "style": 1.0}, None)
    assert (event.grader, event.grading_seconds, event.tries, event.scored_at) == ("harbor", 2.0, 2, 7.0)


@pytest.mark.parametrize(
    ("grader", "purpose", "compared"), [("relative_judge", "train", False), ("relative_judge", "eval", True), ("answer", "train", True)]
)
def test_session_for_training_that_sampled_nothing_is_not_compared_with_others(grader: str, purpose: Purpose, *, compared: bool) -> None:
    """It is excluded, and would change the others' rewards. An evaluation counts it."""
    silent = built(grader=GraderSpec(name=grader), purpose=Purpose(purpose), given={"rows": (), "calls": (), "accounting": Accounting()})
    assert (not_graded(silent) is None) is compared
