"""Digests of messages: one for equal messages, another for any other."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from evener.tokens.digests import canonical_json, message_digest

TEXT = st.text('aB é😀\n"')
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
)


def test_order_of_keys_does_not_matter_but_that_of_lists_does() -> None:
    assert canonical_json({"b": [1, 2], "a": "é"}) == canonical_json({"a": "é", "b": [1, 2]}) == '{"a":"é","b":[1,2]}'.encode()
    assert canonical_json([1, 2]) != canonical_json([2, 1])


@given(VALUES)
def test_nothing_is_lost(value: Any) -> None:
    """So different messages have different bytes, 1 and 1.0 and true and very long integers included."""
    back = json.loads(canonical_json(value))
    assert repr(back) == repr(json.loads(json.dumps(value, sort_keys=True)))


def test_key_is_no_part_of_what_was_said() -> None:
    """Clients may drop the field that carries it."""
    said = {"role": "assistant", "content": "a"}
    assert message_digest(said | {"key": "c1x0"}) == message_digest(said) != message_digest(said | {"content": "b"})
