"""What to do with a trajectory."""

import pytest
from tests.support.builders import built

from evener.evaluator.core import gives_up, not_graded, score
from evener.graders.port import Grade, GraderError, GraderRefused
from evener.proto.codec import decode, encode
from evener.proto.reasons import END_POLICY, TerminationReason
from evener.proto.spec import GraderSpec


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
