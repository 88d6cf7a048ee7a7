"""The tables of ends and faults, walked whole: nothing of ours is graded or trained."""

import itertools

import pytest

from evener.proto.reasons import END_POLICY, INFRASTRUCTURE, UNSERVED, CallFailure, ExitCause, TerminationReason, termination_of

OURS = {
    TerminationReason.INFRASTRUCTURE,
    TerminationReason.REFUSED,
    TerminationReason.SANDBOX_LOST,
    TerminationReason.STOPPED,
    TerminationReason.NO_START,
    TerminationReason.ATTEMPTS_USED_UP,
}
"""Written out again: a change of the table is a decision."""


THEIRS = {
    CallFailure.CONTEXT_OVERFLOW,
    CallFailure.BUDGET,
    CallFailure.CANCELLED,
    CallFailure.MALFORMED,
    CallFailure.MODEL_REFUSED,
}
"""What the agent, the harness or the run's owner is responsible for."""


def test_every_failure_is_somebodys_and_every_end_has_a_consequence() -> None:
    assert sorted([*INFRASTRUCTURE, *UNSERVED, *THEIRS]) == sorted(CallFailure)
    assert set(END_POLICY) == set(TerminationReason)


@pytest.mark.parametrize("end", TerminationReason)
def test_end_by_a_fault_of_ours_is_neither_graded_nor_trained(end: TerminationReason) -> None:
    consequence = END_POLICY[end]
    assert not (consequence.run_again and consequence.grade)
    assert consequence.trainable <= consequence.grade
    if end in OURS:
        assert (consequence.grade, consequence.trainable) == (False, False)


@pytest.mark.parametrize("failure", CallFailure)
@pytest.mark.parametrize(
    ("cause", "code"), list(itertools.product((ExitCause.EXITED, ExitCause.AGENT_TIME, ExitCause.WALL_TIME), (0, 1, None)))
)
def test_no_exit_makes_a_fault_of_ours_the_agents(failure: CallFailure, cause: ExitCause, code: int | None) -> None:
    """As the last call's failure, and as one that the harness got over."""
    last = termination_of(cause, code, failure, None, {failure})
    earlier = termination_of(cause, code, None, None, {failure})
    if failure in INFRASTRUCTURE:
        assert (last, END_POLICY[last].run_again) == (TerminationReason.INFRASTRUCTURE, True)
        assert END_POLICY[earlier].trainable  # it was answered after it
    elif failure in UNSERVED:
        assert (last, earlier) == (TerminationReason.REFUSED, TerminationReason.REFUSED)
    else:
        assert END_POLICY[last].trainable
        assert END_POLICY[earlier].trainable
