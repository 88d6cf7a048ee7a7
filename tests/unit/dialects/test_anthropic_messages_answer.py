"""Answers on the wire: golden bytes, every way to stream one, and what the official client makes of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.sdks import anthropic
from tests.support.server_sent_events import events_in
from tests.unit.dialects.arbitrary import HEAD, PIECES, answer, beginnings, held, live, messages

from evener.dialects.anthropic_messages import AnthropicMessages
from evener.dialects.canonical import CanonicalRequest, Overflow, RequestError
from evener.proto.sessions import FinishReason
from evener.tokens.digests import Message

MESSAGES = AnthropicMessages()
ASKED: dict[str, Any] = {"model": "policy", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
CALLING: Message = {
    "role": "assistant",
    "content": "On it é.\u2028",
    "reasoning": "Hm.",
    "tool_calls": [
        {"id": "callc1x0x0", "name": "f", "arguments": {"b": 1.0, "a": ["é"]}},
        {"id": "callc1x0x1", "name": "g", "arguments": "{broken"},
    ],
}
ASKS: Any = [{"role": "user", "content": "hi"}]


def asked(**more: Any) -> CanonicalRequest:
    return MESSAGES.parse("/v1/messages", json.dumps(ASKED | more).encode())


def assembled(body: bytes) -> Message:
    """What a client makes of a stream that it checks strictly: blocks open and close in order, nothing comes outside of one."""
    message: Message = {}
    is_open = ended = False
    for event in events_in(body):
        fields = event.value()
        assert event.type == fields["type"]
        assert not ended
        match fields["type"]:
            case "message_start":
                message = fields["message"]
            case "content_block_start":
                assert not is_open
                assert fields["index"] == len(message["content"])
                message["content"].append(fields["content_block"])
                is_open = True
            case "content_block_delta":
                assert is_open
                assert fields["index"] == len(message["content"]) - 1
                add(message["content"][-1], fields["delta"])
            case "content_block_stop":
                assert is_open
                is_open = False
            case "message_delta":
                assert not is_open
                message |= fields["delta"]
                message["usage"] |= fields["usage"]
            case "message_stop":
                ended = True
            case kind:
                assert kind == "ping"
    assert ended
    return message


def add(block: Message, delta: Message) -> None:
    kind = delta["type"]
    if kind == "input_json_delta":
        block["input"] = json.loads(delta["partial_json"])
    else:
        field = kind.removesuffix("_delta")
        block[field] += delta[field]


def test_whole_answer_byte_by_byte() -> None:
    assert MESSAGES.answer(asked(), answer(CALLING)).decode() == (
        '{"id":"msg_a1","type":"message","role":"assistant","model":"policy","content":['
        '{"type":"thinking","thinking":"Hm.","signature":"c1x0"},{"type":"text","text":"On it é.\\u2028"},'
        '{"type":"tool_use","id":"callc1x0x0","name":"f","input":{"b":1.0,"a":["é"]}},'
        '{"type":"tool_use","id":"callc1x0x1","name":"g","input":{"__unparsedToolInput":{"raw":"{broken","len":7}}}],'
        '"stop_reason":"tool_use","stop_sequence":null,'
        '"usage":{"cache_creation_input_tokens":0,"cache_read_input_tokens":3,"input_tokens":7,"output_tokens":5}}'
    )


def test_streamed_answer_byte_by_byte() -> None:
    assert held(MESSAGES, asked(), answer(CALLING)).decode() == (
        'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_a1","type":"message","role":"assistant","model":"policy",'
        '"content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":10,"cache_creation_input_tokens":0,'
        '"cache_read_input_tokens":0,"output_tokens":0}}}\n\n'
        'event: ping\ndata: {"type":"ping"}\n\n'
        'event: content_block_start\ndata: {"type":"content_block_start","index":0,'
        '"content_block":{"type":"thinking","thinking":"","signature":""}}\n\n'
        'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"Hm."}}\n\n'
        'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
        '"delta":{"type":"signature_delta","signature":"c1x0"}}\n\n'
        'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n'
        'event: content_block_start\ndata: {"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}\n\n'
        'event: content_block_delta\ndata: {"type":"content_block_delta","index":1,'
        '"delta":{"type":"text_delta","text":"On it é.\\u2028"}}\n\n'
        'event: content_block_stop\ndata: {"type":"content_block_stop","index":1}\n\n'
        'event: content_block_start\ndata: {"type":"content_block_start","index":2,'
        '"content_block":{"type":"tool_use","id":"callc1x0x0","name":"f","input":{}}}\n\n'
        'event: content_block_delta\ndata: {"type":"content_block_delta","index":2,'
        '"delta":{"type":"input_json_delta","partial_json":"{\\"b\\":1.0,\\"a\\":[\\"é\\"]}"}}\n\n'
        'event: content_block_stop\ndata: {"type":"content_block_stop","index":2}\n\n'
        'event: content_block_start\ndata: {"type":"content_block_start","index":3,'
        '"content_block":{"type":"tool_use","id":"callc1x0x1","name":"g","input":{}}}\n\n'
        'event: content_block_delta\ndata: {"type":"content_block_delta","index":3,'
        '"delta":{"type":"input_json_delta","partial_json":"{\\"__unparsedToolInput\\":{\\"raw\\":\\"{broken\\",\\"len\\":7}}"}}\n\n'
        'event: content_block_stop\ndata: {"type":"content_block_stop","index":3}\n\n'
        'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},'
        '"usage":{"input_tokens":7,"output_tokens":5,"cache_read_input_tokens":3}}\n\n'
        'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    )


@pytest.mark.parametrize(
    ("finish", "message", "expected"),
    [
        (FinishReason.STOP, {"role": "assistant", "content": "a"}, "end_turn"),
        (FinishReason.LENGTH, {"role": "assistant", "content": "a"}, "max_tokens"),
        (FinishReason.STOP, CALLING, "tool_use"),
        (FinishReason.LENGTH, CALLING, "max_tokens"),
        (FinishReason.ABORTED, {"role": "assistant", "content": "a"}, "max_tokens"),
    ],
)
def test_stop_reason(finish: FinishReason, message: Message, expected: str) -> None:
    assert json.loads(MESSAGES.answer(asked(), answer(message, finish=finish)))["stop_reason"] == expected


def test_usage_is_the_whole_prompt_where_nothing_is_known_of_a_cache() -> None:
    """A client adds up what is cached and what is not."""
    usage = json.loads(MESSAGES.answer(asked(), answer(CALLING, cached=None)))["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (10, 0)


@given(messages())
def test_an_answer_sent_back_is_understood_as_it_was_sent(message: Message) -> None:
    """Whole or streamed, it is the same blocks; the next request of a client that keeps all has the answer, and its key."""
    whole = json.loads(MESSAGES.answer(asked(), answer(message)))
    assert assembled(held(MESSAGES, asked(), answer(message)))["content"] == whole["content"]

    sent = {"role": "assistant", "content": whole["content"]}
    back = asked(messages=[*ASKED["messages"], sent, *ASKED["messages"]]).messages[1]
    assert back == message | ({"key": "c1x0"} if "reasoning" in message else {})


@given(st.data(), messages())
def test_every_way_to_stream_an_answer_says_the_same(data: st.DataObject, message: Message) -> None:
    """Any part of it leaves before the end, cut anywhere; reasoning first."""
    given = answer(message)
    body = live(MESSAGES, asked(), given, data.draw(beginnings(message)))
    assert assembled(body) == assembled(held(MESSAGES, asked(), given))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RequestError("no", status=401, kind="authentication_error"), "authentication_error"),
        (RequestError("no", status=404, kind="not_found_error"), "not_found_error"),
        (RequestError("no", status=429, kind="rate_limit_error"), "rate_limit_error"),
        (RequestError("no", status=503, kind="overloaded_error"), "overloaded_error"),
        (RequestError("no", status=413), "request_too_large"),
        (RequestError("no", status=500, kind="server_error"), "api_error"),
        (RequestError("no", status=400, kind="budget_spent"), "invalid_request_error"),
    ],
)
def test_errors_have_the_official_shape(error: RequestError, kind: str) -> None:
    body = MESSAGES.error(error)
    assert json.loads(body) == {"type": "error", "error": {"type": kind, "message": "no"}}
    assert MESSAGES.stream_error(HEAD, error) == b"event: error\ndata: " + body + b"\n\n"


@pytest.mark.parametrize(
    ("overflow", "told"),
    [
        (Overflow(asked=5000, limit=4096), "prompt is too long: 5000 tokens > 4096 maximum"),
        (None, "prompt is too long: 7 do not fit into 3 by far"),
    ],
)
def test_a_full_context_is_reported_in_the_words_that_clients_know(overflow: Overflow | None, told: str) -> None:
    """With the numbers, where they are known: they are not guessed from a text."""
    refused = RequestError("7 do not fit into 3 by far", kind="context_length_exceeded", overflow=overflow)
    error = json.loads(MESSAGES.error(refused))["error"]
    assert error == {"type": "invalid_request_error", "message": told}


def client(status: int, body: bytes, kind: str = "application/json") -> anthropic.Anthropic:
    """The official client, answered with these bytes."""
    handler: Callable[[httpx2.Request], httpx2.Response] = lambda _: httpx2.Response(status, content=body, headers={"content-type": kind})  # noqa: E731
    http = httpx2.Client(transport=httpx2.MockTransport(handler))
    return anthropic.Anthropic(base_url="http://localhost", api_key="k", http_client=http, max_retries=0)


def check_blocks(message: anthropic.types.Message) -> None:
    thinking, text, first, second = message.content
    assert thinking.model_dump(exclude_none=True) == {"type": "thinking", "thinking": "Hm.", "signature": "c1x0"}
    assert text.type == "text"
    assert text.text == "On it é.\u2028"
    assert first.type == "tool_use"
    assert (first.id, first.name, first.input) == ("callc1x0x0", "f", {"b": 1.0, "a": ["é"]})
    assert second.type == "tool_use"
    assert second.input == {"__unparsedToolInput": {"raw": "{broken", "len": 7}}
    assert message.stop_reason == "tool_use"
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens, message.usage.output_tokens) == (7, 3, 5)


def test_official_client_reads_a_whole_answer() -> None:
    with client(200, MESSAGES.answer(asked(), answer(CALLING))) as official:
        check_blocks(official.messages.create(model="policy", max_tokens=9, messages=ASKS))


@pytest.mark.parametrize("body", [held(MESSAGES, asked(), answer(CALLING)), live(MESSAGES, asked(), answer(CALLING), PIECES)])
def test_official_client_assembles_a_stream(body: bytes) -> None:
    with (
        client(200, body, "text/event-stream") as official,
        official.messages.stream(model="policy", max_tokens=9, messages=ASKS) as events,
    ):
        check_blocks(events.get_final_message())


def test_official_client_reads_a_count() -> None:
    with client(200, MESSAGES.counted(12)) as official:
        assert official.messages.count_tokens(model="policy", messages=ASKS).input_tokens == 12


def test_official_client_raises_our_errors() -> None:
    error = RequestError("model: must not be empty", field="model")
    with client(400, MESSAGES.error(error)) as official, pytest.raises(anthropic.BadRequestError, match="model: must not be empty"):
        official.messages.create(model="policy", max_tokens=9, messages=ASKS)

    body = MESSAGES.prologue(HEAD) + MESSAGES.stream_error(HEAD, RequestError("gone", kind="overloaded_error", status=503))
    with client(200, body, "text/event-stream") as official, pytest.raises(anthropic.APIStatusError, match="gone"):
        list(official.messages.create(model="policy", max_tokens=9, messages=ASKS, stream=True))
