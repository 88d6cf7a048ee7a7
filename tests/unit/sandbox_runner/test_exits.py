"""What an exit says of the requests that had no answer."""

import math

import pytest

from evener.proto.reasons import CallFailure, ExitCause
from evener.sandbox_runner.relay import MAX_DETAIL, Report
from evener.sandbox_runner.sessions import Exit

LATER, EARLIER = math.inf, -math.inf
"""When a request came, compared with everything that a test lets happen."""


def left(report: Report, cause: ExitCause = ExitCause.EXITED, code: int | None = 1) -> Exit:
    """Return such an exit with what the relay reports."""
    left = Exit(cause=cause, exit_code=code)
    left.tell(report)
    return left


def told(report: Report, cause: ExitCause = ExitCause.EXITED, code: int | None = 1) -> CallFailure | None:
    """Return the failure that such an exit names."""
    return left(report, cause, code).unanswered


def test_harness_whose_requests_were_answered_failed_by_itself() -> None:
    assert told(Report()) is None


@pytest.mark.parametrize(("code", "named"), [(0, CallFailure.OVERLOADED), (1, CallFailure.OVERLOADED)])
def test_request_that_was_not_served_is_named_whatever_the_exit_code(code: int, named: CallFailure) -> None:
    """Some harnesses succeed without an answer."""
    report = Report()
    report.unlogged(CallFailure.OVERLOADED)

    assert told(report, code=code) is named


def test_requests_that_came_later_are_named_for_the_session_to_judge_whether_the_harness_went_on() -> None:
    """Only the log knows whether they are the agent's, or a title."""
    report = Report()
    report.unlogged(CallFailure.OVERLOADED)
    report.ended("r1", LATER)
    report.ended("r2", LATER)

    assert (told(report), left(report).later_requests) == (CallFailure.OVERLOADED, ("r1", "r2"))


@pytest.mark.parametrize("code", [0, 1])
def test_request_beside_it_that_was_answered_says_nothing_of_it(code: int) -> None:
    """It had come before: the harness may give up for the one without the other, and exit with 0."""
    report = Report()
    report.unlogged(CallFailure.OVERLOADED)
    report.ended("r1", EARLIER)

    assert (told(report, code=code), left(report).later_requests) == (CallFailure.OVERLOADED, ())


def test_answer_before_a_failure_says_nothing_of_it() -> None:
    report = Report()
    report.ended("r1", EARLIER)
    report.unlogged(CallFailure.NOT_COMMITTED)

    assert told(report, code=0) is CallFailure.NOT_COMMITTED


@pytest.mark.parametrize(
    ("cause", "code", "named"),
    [
        (ExitCause.EXITED, 1, CallFailure.OVERLOADED),
        (ExitCause.EXITED, None, CallFailure.OVERLOADED),
        (ExitCause.EXITED, 0, CallFailure.OVERLOADED),
        (ExitCause.AGENT_TIME, 1, None),
        (ExitCause.CANCELLED, None, None),
    ],
)
def test_harness_that_left_a_request_in_vain_ended_for_it_if_it_ended_by_itself(
    cause: ExitCause, code: int | None, named: CallFailure | None
) -> None:
    """One that we ended left all its requests."""
    report = Report()
    report.disconnected_in_vain()

    assert told(report, cause, code) is named


def test_what_was_refused_is_named_rather_than_what_was_left() -> None:
    report = Report()
    report.unlogged(CallFailure.NOT_COMMITTED)
    report.disconnected_in_vain()

    assert told(report) is CallFailure.NOT_COMMITTED


def test_failures_are_counted_by_reason_with_the_last_detail_on_a_line() -> None:
    report = Report()
    report.failed(CallFailure.OVERLOADED, "first")
    report.failed(CallFailure.OVERLOADED, "second\nline " + "x" * MAX_DETAIL)
    report.failed(CallFailure.REFUSED, "stop: not served")
    left = Exit(cause=ExitCause.EXITED, exit_code=0)
    left.tell(report)

    assert [(failed.reason, failed.count) for failed in left.failures] == [(CallFailure.OVERLOADED, 2), (CallFailure.REFUSED, 1)]
    assert left.failures[0].detail.startswith("second line x")
    assert len(left.failures[0].detail) == MAX_DETAIL + len("...")


@pytest.mark.parametrize(
    ("cause", "code", "well"),
    [
        (ExitCause.EXITED, 0, True),
        (ExitCause.EXITED, None, True),
        (ExitCause.EXITED, 1, False),
        (ExitCause.STOPPED, 0, False),
    ],
)
def test_exit_is_well_if_the_harness_ended_by_itself_and_said_so(cause: ExitCause, code: int | None, *, well: bool) -> None:
    """Of a recording's harness the exit code is not always known."""
    assert Exit(cause=cause, exit_code=code).well is well


def test_request_of_a_later_step_excuses_nothing_of_an_earlier_one() -> None:
    """Another harness sent it."""
    report = Report()
    report.step = 1
    report.unlogged(CallFailure.OVERLOADED)
    report.ended("r1", LATER)
    report.step = 2
    report.ended("r2", LATER)

    assert report.unanswered is not None
    assert list(report.unanswered.later_requests) == ["r1"]
