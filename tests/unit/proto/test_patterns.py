"""Regular expressions of others: what is one, what it finds, and that no search goes on for ever."""

import threading
import time

import pytest

from evener.proto.patterns import SlowPattern, text_pattern

ENDLESS = "(a|aa)+$"
"""Tries every way to part a row of letters into ones and twos."""
TEXT = 60 * "a" + "!"


@pytest.mark.parametrize("pattern", ["(", "*", "a{99999999999}", "(" * 3000, "["])
def test_what_is_no_regular_expression_is_told(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"at position|recursion|too big"):
        text_pattern(pattern)


def test_cut_returns_what_is_left_and_what_was_cut() -> None:
    assert text_pattern(r"<env>.*?</env>").cut("a<env>1</env>b<env>2</env>") == ("ab", ["<env>1</env>", "<env>2</env>"])
    assert text_pattern("x*").cut("none") == ("none", [])


def test_case_counts_unless_it_is_said() -> None:
    assert not text_pattern("paris").occurs_in("Paris")
    assert text_pattern("paris", ignore_case=True).occurs_in("Paris")


def test_endless_search_ends_and_lets_other_threads_work_meanwhile() -> None:
    """A search that holds the GIL would stop the loop of a service from any thread."""
    turns: list[float] = []
    over = threading.Event()

    def count() -> None:
        while not over.wait(0.01):
            turns.append(time.monotonic())

    counting = threading.Thread(target=count)
    counting.start()
    try:
        with pytest.raises(SlowPattern, match=r"in 61 characters took more than 2 s"):
            text_pattern(ENDLESS).occurs_in(TEXT)
        with pytest.raises(SlowPattern):
            text_pattern(ENDLESS).cut(TEXT)
    finally:
        over.set()
        counting.join()
    assert len(turns) > 10
