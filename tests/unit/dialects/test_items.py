"""What is kept of parsed items."""

import gc
import json
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import pytest

from evener.dialects.items import MAX_ITEM_BYTES, Items
from evener.dialects.openai_chat_messages import parse_message

KEPT_BYTES = 1 << 19


def _messages(content: Any) -> Iterator[dict[str, Any]]:
    number = 0
    while True:
        number += 1
        yield {"role": "user", "content": [{"type": "text", "text": f"{number}"}, *content]}


HOSTILE: dict[str, tuple[list[Any], int]] = {
    "many objects": ([{"type": "text", "text": "a"}] * 2000, 10),
    "one rare letter": ([{"type": "text", "text": "a" * 20_000 + "😀"}], 50),
    "text": ([{"type": "text", "text": "word " * 2000}], 150),
    "nothing": ([], 2000),
}
"""Content, and of how many messages: more than are kept."""


def held_by(items: Items[Any], raws: Sequence[bytes]) -> int:
    """Return the bytes that are there after parsing lists of one item, and were not before."""
    gc.collect()
    tracemalloc.start()
    for raw in raws:
        items.of(raw, "messages")
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held


@pytest.mark.parametrize("spell", [json.dumps, partial(json.dumps, ensure_ascii=False)])
@pytest.mark.parametrize("kind", HOSTILE)
def test_cache_of_messages_weighs_what_it_holds(kind: str, spell: Callable[[Any], str]) -> None:
    """It held twelve times what it was allowed to."""
    content, count = HOSTILE[kind]
    messages = islice(_messages(content), count)

    assert held_by(Items(parse_message, max_bytes=KEPT_BYTES), [spell([one]).encode() for one in messages]) < 1.2 * KEPT_BYTES


@pytest.mark.parametrize("cell", ["{}", "[]", '{"a":{}}', "1.5", '"ab"', '{"a":1}'])
def test_cache_of_schemas_weighs_what_it_holds(cell: str) -> None:
    """Two letters are 64 bytes and more."""
    raws = [f"[[{number}{f',{cell}' * 3000}]]".encode() for number in range(6)]

    assert held_by(Items(lambda value, _: value, max_bytes=KEPT_BYTES), raws) < 1.2 * KEPT_BYTES


def test_item_is_parsed_once_unless_it_is_large() -> None:
    parsed: list[int] = []

    def parse(value: str, _: str) -> int:
        parsed.append(len(value))
        return len(value)

    items = Items(parse)
    for length in (5, 5, MAX_ITEM_BYTES, MAX_ITEM_BYTES):
        items.of(json.dumps(["x" * length]).encode(), "messages")

    assert parsed == [5, MAX_ITEM_BYTES, MAX_ITEM_BYTES]
