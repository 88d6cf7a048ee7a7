"""The tables of ends and faults, walked whole: nothing of ours is graded or trained."""

import itertools

import pytest

from evener.proto.ends import CONSEQUENCES, INFRASTRUCTURE, WHOSE, CallFailure, End, ExitCause, Whose, judge

OURS = {
    End.INFRASTRUCTURE,
    End.REFUSED,
    End.SANDBOX_LOST,
    End.RUNNER_LOST,
    End.STOPPED,
    End.NO_START,
    End.ATTEMPTS_USED_UP,
}
"""Written out again: a change of the table is a decision."""


def test_every_failure_is_somebodys_and_every_end_has_a_consequence() -> None:
    assert set(WHOSE) == set(CallFailure)
    assert set(CONSEQUENCES) == set(End)


@pytest.mark.parametrize("end", End)
def test_end_by_a_fault_of_ours_is_neither_graded_nor_trained(end: End) -> None:
    consequence = CONSEQUENCES[end]
    assert not (consequence.run_again and consequence.grade)
    assert consequence.trainable <= consequence.grade
    if end in OURS:
        assert (consequence.grade, consequence.trainable) == (False, False)


@pytest.mark.parametrize("failure", CallFailure)
@pytest.mark.parametrize(("cause", "code"), list(itertools.product((ExitCause.EXITED, ExitCause.AGENT_TIME), (0, 1, None))))
def test_no_exit_makes_a_fault_of_ours_the_agents(failure: CallFailure, cause: ExitCause, code: int | None) -> None:
    """As the last call's failure, and as one that the harness got over."""
    last = judge(cause, code, failure, None, {failure})
    earlier = judge(cause, code, None, None, {failure})
    match WHOSE[failure]:
        case Whose.OURS:
            assert (last, CONSEQUENCES[last].run_again) == (End.INFRASTRUCTURE, True)
            assert CONSEQUENCES[earlier].trainable  # it was answered after it
        case Whose.UNSERVED:
            assert (last, earlier) == (End.REFUSED, End.REFUSED)
        case _:
            assert CONSEQUENCES[last].trainable
            assert CONSEQUENCES[earlier].trainable


def test_infrastructure_is_what_another_attempt_may_not_meet() -> None:
    assert {failure for failure in CallFailure if WHOSE[failure] is Whose.OURS} == INFRASTRUCTURE
