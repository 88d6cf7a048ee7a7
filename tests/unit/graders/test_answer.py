"""The grader that compares the last message."""

import pytest

from evener.graders.answer import compare
from evener.graders.port import GraderRefused


@pytest.mark.parametrize(
    ("match", "expected", "answer", "right"),
    [
        ("exact", "Paris", "  paris\n", True),
        ("exact", "New York", "new \n york", True),
        ("exact", "Paris", "It is Paris.", False),
        ("contains", "paris", "It is  PARIS.", True),
        ("contains", "Paris", "Lyon", False),
        ("regex", r"\bpar+is\b", "It is Parris!", True),
        ("regex", r"^paris$", "It is Paris", False),
        ("number", "42", "17 + 25 = 42.0", True),
        ("number", "1200", "That makes 1,200.", True),
        ("number", "-3", "3, no, -3", True),
        ("number", "42", "no number at all", False),
        ("exact", "Paris", None, False),
        ("number", "42", None, False),
        ("exact", "", "", True),
    ],
)
def test_answer_is_compared_as_the_task_says(match: str, expected: str, answer: str | None, right: bool) -> None:  # noqa: FBT001 - an expectation
    """Case and white space are folded; of a number the last one said counts; no answer is never right."""
    assert compare(answer, expected, match) is right


@pytest.mark.parametrize(
    ("match", "expected", "told"),
    [
        ("exact", None, "`expected`"),
        ("similar", "x", "contains, exact, number, regex"),
        ("regex", "(", "not a regular expression"),
        ("number", "x", "not a number"),
    ],
)
def test_task_that_cannot_be_compared_is_refused_by_name(match: str, expected: str | None, told: str) -> None:
    """A mistake of the task is not the agent's wrong answer."""
    with pytest.raises(GraderRefused, match=told):
        compare("anything", expected, match)


def test_search_that_would_not_end_is_a_mistake_of_the_task() -> None:
    """Whatever the agent answers, its session is graded again and again by no one."""
    with pytest.raises(GraderRefused, match=r"in 61 characters took more than 2 s"):
        compare(60 * "a" + "!", "(a|aa)+$", "regex")
