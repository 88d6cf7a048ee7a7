"""The canonical form: one spelling for equal messages."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evener.dialects.canonical import canonical_bytes, text_of

TEXT = st.text('aB é😀\n"')
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
)


def test_order_of_keys_does_not_matter_but_that_of_lists_does() -> None:
    assert canonical_bytes({"b": [1, 2], "a": "é"}) == canonical_bytes({"a": "é", "b": [1, 2]}) == '{"a":"é","b":[1,2]}'.encode()
    assert canonical_bytes([1, 2]) != canonical_bytes([2, 1])


@settings(deadline=None)
@given(VALUES)
def test_nothing_is_lost(value: Any) -> None:
    """So different messages have different bytes, 1 and 1.0 and true included."""
    back = json.loads(canonical_bytes(value))
    assert repr(back) == repr(json.loads(json.dumps(value, sort_keys=True)))


@pytest.mark.parametrize(
    ("sent", "came_back"),
    [(1.0, 1), (1e3, 1000), (12345678901234567891, 12345678901234567000), ([{"a": -0.0}], [{"a": 0}]), (10**400, None)],
)
def test_loose_numbers_are_what_javascript_keeps(sent: Any, came_back: Any) -> None:
    assert canonical_bytes(sent, loose_numbers=True) == canonical_bytes(came_back, loose_numbers=True)
    assert canonical_bytes(sent) != canonical_bytes(came_back)


def test_loose_numbers_keep_booleans_and_fractions_apart() -> None:
    assert canonical_bytes([True, 1.5], loose_numbers=True) == b"[true,1.5]"


@settings(deadline=None)
@given(VALUES)
def test_loose_is_stable(value: Any) -> None:
    """What was loosened once stays the same."""
    once = canonical_bytes(value, loose_numbers=True)
    assert canonical_bytes(json.loads(once), loose_numbers=True) == once


def test_text_leaves_images_out() -> None:
    image = {"type": "image", "digest": "0" * 64, "media_type": "image/png"}
    assert text_of({"role": "user", "content": [{"type": "text", "text": "a"}, image, {"type": "text", "text": "b"}]}) == "a\nb"
    assert text_of({"role": "user", "content": "a"}) == "a"
