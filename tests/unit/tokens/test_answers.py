"""Answers that come back: what recognises them, and which changes make them somebody else's."""

from typing import Any

import pytest

from evener.proto.sessions import MatchedBy
from evener.proto.spec import Reasoning, Tolerance
from evener.tokens.answers import same_answer

CALL: dict[str, Any] = {"id": "callc1x0x0", "name": "run", "arguments": {"n": 1.0, "long": 12345678901234567891}}
SAMPLED: dict[str, Any] = {"role": "assistant", "content": " text \n", "reasoning": "hm \n", "tool_calls": [CALL]}
PLAIN: dict[str, Any] = {"role": "assistant", "content": " text \n"}
ALL = frozenset(Tolerance)


def same(sampled: dict[str, Any], sent: dict[str, Any], *tolerances: Tolerance, reasoning: Reasoning = Reasoning.REINSTATE) -> Any:
    return same_answer(sampled, "c1x0", sent, frozenset(tolerances), reasoning)


@pytest.mark.parametrize(
    ("sampled", "sent", "by"),
    [
        (SAMPLED, SAMPLED, MatchedBy.CALL_ID),
        (PLAIN, PLAIN, MatchedBy.CONTENT),
        (PLAIN, PLAIN | {"key": "c1x0"}, MatchedBy.KEY),
        (PLAIN, PLAIN | {"key": "c9x0"}, MatchedBy.CONTENT),
    ],
)
def test_unchanged_answer_needs_no_tolerance(sampled: dict[str, Any], sent: dict[str, Any], by: MatchedBy) -> None:
    assert same(sampled, sent) == (by, False)


@pytest.mark.parametrize(
    ("change", "tolerance"),
    [
        ({"content": "text"}, Tolerance.TEXT_TRIMMED),
        ({"reasoning": "hm"}, Tolerance.TEXT_TRIMMED),
        ({"reasoning": None}, Tolerance.REASONING_ABSENT),
        ({"tool_calls": [CALL | {"arguments": {"n": 1, "long": 12345678901234567000}}]}, Tolerance.NUMBERS_LOOSE),
        ({"tool_calls": [CALL | {"id": ""}]}, Tolerance.CALL_IDS_ABSENT),
        ({"tool_calls": [CALL | {"id": "call_c1x0x0"}]}, Tolerance.CALL_ID_LETTERS),
    ],
)
def test_each_change_needs_its_own_tolerance(change: dict[str, Any], tolerance: Tolerance) -> None:
    """And no other one excuses it."""
    sent = {name: value for name, value in (SAMPLED | change).items() if value is not None}
    found = same(SAMPLED, sent, tolerance)
    assert found is not None
    assert found[1]
    assert same(SAMPLED, sent, *(ALL - {tolerance})) is None


def test_blank_text_may_be_absent() -> None:
    blank = SAMPLED | {"content": " \n"}
    assert same(blank, SAMPLED | {"content": ""}, Tolerance.BLANK_TEXT_ABSENT) == (MatchedBy.CALL_ID, True)
    assert same(blank, SAMPLED | {"content": ""}) is None


@pytest.mark.parametrize(
    "change",
    [
        {"content": "other"},
        {"reasoning": "other"},
        {"tool_calls": [CALL | {"name": "walk"}]},
        {"tool_calls": [CALL | {"arguments": {"n": True, "long": 12345678901234567891}}]},
        {"tool_calls": [CALL, CALL]},
        {"tool_calls": [CALL | {"id": "callc2x0x0"}]},
    ],
)
def test_what_no_tolerance_excuses_is_the_harness_own_message(change: dict[str, Any]) -> None:
    assert same(SAMPLED, SAMPLED | change, *ALL) is None


def test_key_does_not_excuse_another_text() -> None:
    """A client may keep the signature and rewrite the text."""
    assert same(PLAIN, PLAIN | {"content": "rewritten", "key": "c1x0"}, *ALL) is None


def test_dropped_reasoning_is_another_answer_where_it_counts_as_sent() -> None:
    """With `as_sent` the policy gets what plain serving would give it."""
    sent = {name: value for name, value in SAMPLED.items() if name != "reasoning"}
    assert same(SAMPLED, sent, *ALL, reasoning=Reasoning.AS_SENT) is None
