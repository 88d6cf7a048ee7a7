"""Regular expressions of others: what is one, what it finds, and that no search goes on for ever."""

import threading
import time

import pytest

from evener.proto.patterns import BadPattern, SlowPattern, text_pattern

ENDLESS = "(a|aa)+$"
"""Tries every way to part a row of letters into ones and twos."""
TEXT = 60 * "a" + "!"


@pytest.mark.parametrize("pattern", ["(", "*", "a{99999999999}", "(" * 1500, "["])
def test_what_is_no_regular_expression_is_reported(pattern: str) -> None:
    with pytest.raises(BadPattern, match=r"at position|recursion|repeat fewer"):
        text_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        ("(" * 22 + "a" + ")+" * 22, "repeat fewer parts"),
        ("(?:" * 12 + "a" + "){2}" * 12, "repeat fewer parts"),
        ("(?:a{10000}){100}", "repeat fewer parts"),
        ("(?:" * 22 + "a" + ")(?i)(?#c)+" * 22, "repeat fewer parts"),
        ("|".join(["word"] * 1000), "at most 4000"),
        ("(?x)" + "(" * 22 + "a" + ") +" * 22, "the flags x"),
        ("(?V1:[[a](]", "the flags x and V1"),
        ("(?:" * 22 + "a" + "){e<=0}+" * 22, "approximate matching"),
        ("[[:alpha:](]", "a set contains a set"),
    ],
)
def test_what_would_take_long_to_compile_is_refused_before_it_is(pattern: str, told: str) -> None:
    """Each level of a repetition doubles the work; 24 levels take 30 GB. The rest would hide how many there are."""
    with pytest.raises(BadPattern, match=told):
        text_pattern(pattern)


@pytest.mark.parametrize(
    "pattern", [r"(?:ab{2,3}|[^]()+]\(){5}", r"x-billing:(?: *\w+=[^;\n]*;)+\n*", r"(?i:a)(?=b)[^\]]{400}", '{"id": "[0-9a-f]{32}"}']
)
def test_usual_patterns_pass(pattern: str) -> None:
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
