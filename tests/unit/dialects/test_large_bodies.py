"""Bodies as large as a client likes: the work of reading one grows as it does, and an absurd one is refused by name."""

import json
import sys
import threading
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from evener.dialects.bodies import MAX_VALUES
from evener.dialects.canonical import RequestError
from evener.dialects.items import MAX_ITEM_BYTES, MAX_ITEMS, Items
from evener.dialects.openai_chat_messages import parse_message
from evener.dialects.registry import dialect_for

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
GOOGLE = "/v1beta/models/m:generateContent"
COUNT = 800


def chat_messages(count: int) -> Any:
    return {"model": "m", "messages": [{"role": "user", "content": f"chat {count} {at}"} for at in range(count)]}


def chat_parts(count: int) -> Any:
    parts = [{"type": "text", "text": f"part {count} {at}"} for at in range(count)]
    return {"model": "m", "messages": [{"role": "user", "content": parts}]}


def chat_calls(count: int) -> Any:
    calls = [{"id": f"c{count}x{at}", "type": "function", "function": {"name": "f", "arguments": "{}"}} for at in range(count)]
    results = [{"role": "tool", "content": "", "tool_call_id": call["id"]} for call in calls]
    return {"model": "m", "messages": [{"role": "assistant", "tool_calls": calls}, *results]}


def responses_parts_of_a_turn(count: int) -> Any:
    said = [{"role": "assistant", "content": f"piece {count} {at} " + 40 * "long "} for at in range(count)]
    return {"model": "m", "input": said}


def responses_calls_of_a_turn(count: int) -> Any:
    calls = [
        {"type": "function_call", "id": f"fc_k_{at}", "call_id": f"c{count}x{at}", "name": "f", "arguments": "{}"} for at in range(count)
    ]
    return {"model": "m", "input": calls}


def responses_tools(count: int) -> Any:
    return {"model": "m", "input": "hi", "tools": [{"type": "function", "name": f"f{count}x{at}", "strict": True} for at in range(count)]}


def anthropic_results(count: int) -> Any:
    calls = [{"type": "tool_use", "id": f"c{count}x{at}", "name": "f", "input": {}} for at in range(count)]
    results = [{"type": "tool_result", "tool_use_id": call["id"], "content": "x"} for call in calls]
    return {"model": "m", "messages": [{"role": "assistant", "content": calls}, {"role": "user", "content": results}]}


def anthropic_deferred_tools(count: int) -> Any:
    names = [f"f{count}x{at}" for at in range(count)]
    found = [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "tool_reference", "tool_name": name} for name in names]}]
    tools = [{"name": name, "defer_loading": True} for name in names]
    return {"model": "m", "messages": [{"role": "user", "content": found}], "tools": tools}


def google_pieces(count: int) -> Any:
    return {"contents": [{"role": "model", "parts": [{"text": f"piece {count} {at}"}]} for at in range(count)]}


def google_results(name: str) -> Callable[[int], Any]:
    """Return what makes results without ids, the last call's first: of calls by that name, or of none that is there."""

    def body(count: int) -> Any:
        calls = [{"functionCall": {"name": f"f{at}", "args": {"count": count}}} for at in range(count)]
        results = [{"functionResponse": {"name": name.format(at), "response": {"output": "x"}}} for at in reversed(range(count))]
        return {"contents": [{"role": "model", "parts": calls}, {"role": "user", "parts": results}]}

    return body


BODIES = {
    "chat messages": (CHAT, chat_messages),
    "chat parts": (CHAT, chat_parts),
    "chat calls": (CHAT, chat_calls),
    "responses parts of a turn": (RESPONSES, responses_parts_of_a_turn),
    "responses calls of a turn": (RESPONSES, responses_calls_of_a_turn),
    "responses tools": (RESPONSES, responses_tools),
    "anthropic results": (MESSAGES, anthropic_results),
    "anthropic deferred tools": (MESSAGES, anthropic_deferred_tools),
    "google pieces of an answer": (GOOGLE, google_pieces),
    "google results": (GOOGLE, google_results("f{}")),
    "google results of no call": (GOOGLE, google_results("g{}")),
}


def size(value: Any) -> int:
    """Return how much stands in a value, two levels down."""
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return 1 + sum(len(one) if isinstance(one, str | bytes | list | dict | tuple) else 1 for one in values)


def work(path: str, body: bytes) -> int:
    """Return how much is done to read a body: lines that run, and the size of what functions hand on. A time would have noise."""
    done = 0

    def count(_: FrameType, event: str, value: Any) -> Any:
        nonlocal done
        done += size(value) if event == "return" else 1
        return count

    dialect, before = dialect_for(path), sys.gettrace()
    assert dialect is not None
    sys.settrace(count)
    try:
        dialect.parse(path, body)
    finally:
        sys.settrace(before)
    return done


@pytest.mark.parametrize("name", BODIES)
def test_twice_as_large_a_body_is_twice_the_work(name: str) -> None:
    """Whoever sends one waits for it alone."""
    path, body = BODIES[name]
    once, twice = (work(path, json.dumps(body(count)).encode()) for count in (COUNT, 2 * COUNT))
    assert twice < 2.5 * once


def parsed(value: Any, _: str) -> Any:
    return [value]


def test_the_oldest_items_go_when_there_is_no_more_room() -> None:
    """What is held is what is counted."""
    items = Items(parsed, max_bytes=100 * 2048)
    for start in (0, 1000):
        items.of(json.dumps(list(range(start, start + 1000))).encode(), "items")
    assert list(items._kept) == [str(number).encode() for number in range(2000 - len(items._kept), 2000)]
    assert items._bytes == sum(2 * len(raw) + 2048 for raw in items._kept) <= 100 * 2048


def test_threads_that_read_the_same_items_keep_each_once() -> None:
    """What is held is what is counted, whoever was faster."""
    ready, lists = threading.Barrier(4), [json.dumps(list(range(2000))).encode()] * 4

    def slowly(value: Any, path: str) -> Any:
        if value == 0:
            ready.wait(60)  # all of them have looked, and none has found it
        return parsed(value, path)

    items = Items(slowly, max_bytes=500 * 2048)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda raw=raw: found.append(items.of(raw, "items"))) for raw in lists]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [[[number] for number in range(2000)]] * 4
    assert items._bytes == sum(2 * len(raw) + 2048 for raw in items._kept)


@pytest.mark.parametrize(
    ("path", "field", "body"),
    [
        (CHAT, "messages", {"model": "m", "messages": [{"role": "user", "content": ""}] * (MAX_ITEMS + 1)}),
        (MESSAGES, "messages", {"model": "m", "messages": [{"role": "user", "content": ""}] * (MAX_ITEMS + 1)}),
        (RESPONSES, "input", {"model": "m", "input": [{"role": "user", "content": ""}] * (MAX_ITEMS + 1)}),
        (GOOGLE, "contents", {"contents": [{"parts": []}] * (MAX_ITEMS + 1)}),
        (CHAT, "tools", {"model": "m", "messages": [{"role": "user", "content": ""}], "tools": [{"type": "mcp"}] * (MAX_ITEMS + 1)}),
    ],
)
def test_an_absurd_number_of_items_is_refused_by_name(path: str, field: str, body: Any) -> None:
    dialect = dialect_for(path)
    assert dialect is not None
    with pytest.raises(RequestError) as refused:
        dialect.parse(path, json.dumps(body).encode())
    assert (refused.value.field, refused.value.status) == (field, 400)
    assert str(MAX_ITEMS) in refused.value.message


def chat_call(arguments: str) -> Any:
    return {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}]}


def responses_call(arguments: str) -> Any:
    return {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments}


@pytest.mark.parametrize(
    ("path", "field", "call"), [(CHAT, "messages", chat_call), (RESPONSES, "input", responses_call)], ids=["chat", "responses"]
)
@pytest.mark.parametrize("parts", [1, 30])
def test_arguments_of_too_many_values_are_refused_before_they_are_parsed(
    path: str, field: str, call: Callable[[str], Any], parts: int
) -> None:
    """16 MB of ones in a text stopped the gateway's loop for 1.4 s, and took 2.4 GB. Many such texts are no better than one."""
    dialect = dialect_for(path)
    assert dialect is not None

    def body(values: int) -> bytes:
        ones = [call(json.dumps({"x": f"part {part}", "y": [1] * (values // parts)})) for part in range(parts)]
        return json.dumps({"model": "m", field: [*ones, {"role": "user", "content": "go on"}]}).encode()

    with pytest.raises(RequestError, match=f"more than {MAX_VALUES} JSON values") as refused:
        dialect.parse(path, body(MAX_VALUES))
    assert (refused.value.field or "").startswith(f"{field}[{parts - 1}]")
    assert dialect.parse(path, body(MAX_VALUES * 9 // 10)).messages


def test_commas_in_the_texts_of_arguments_are_no_values() -> None:
    """An agent writes a long table into a file."""
    table = chat_call(json.dumps({"path": "table.csv", "content": "1,2,3\n" * MAX_VALUES}))
    dialect = dialect_for(CHAT)
    assert dialect is not None
    assert dialect.parse(CHAT, json.dumps({"model": "m", "messages": [table, {"role": "user", "content": "go on"}]}).encode()).messages


def test_what_was_parsed_out_of_a_text_is_counted_as_held() -> None:
    """Or the caches would hold ten times as much as they may."""
    items = Items(parse_message)
    arguments = '{"x": [' + "{}," * (MAX_ITEM_BYTES // 4) + "{}]}"
    raw = json.dumps([chat_call(arguments)]).encode()
    tracemalloc.start()
    try:
        items.of(raw, "messages")
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert MAX_ITEM_BYTES < held <= items._bytes
