"""Answers on the wire: golden bytes, every way to stream one, and what the official client makes of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.sdks import openai
from tests.support.server_sent_events import DONE, events_in
from tests.unit.dialects.arbitrary import HEAD, PIECES, answer, beginnings, held, live, messages

from evener.dialects.canonical import CanonicalRequest, RequestError
from evener.dialects.openai_chat import OpenAIChat
from evener.proto.sessions import FinishReason
from evener.tokens.digests import Message

CHAT = OpenAIChat()
ASKED: dict[str, Any] = {"model": "policy", "messages": [{"role": "user", "content": "hi"}]}
CALLING: Message = {
    "role": "assistant",
    "content": "On it é.",
    "reasoning": "Hm.",
    "tool_calls": [
        {"id": "callc1x0x0", "name": "f", "arguments": {"b": 1.0, "a": ["é"]}},
        {"id": "callc1x0x1", "name": "g", "arguments": "{broken"},
    ],
}
PLAIN: Message = {"role": "assistant", "content": "No."}


def asked(**more: Any) -> CanonicalRequest:
    return CHAT.parse("/v1/chat/completions", json.dumps(ASKED | more).encode())


def assembled(body: bytes) -> list[Message]:
    """What a client makes of a stream that it checks strictly: each choice opens with its role, nothing comes after its end."""
    *events, done = events_in(body)
    assert done.data == DONE
    choices: list[Message] = []
    for choice in [event.value()["choices"][0] for event in events]:
        delta, index = choice["delta"], choice["index"]
        if index == len(choices):
            choices.append({"role": delta.pop("role"), "content": "", "tool_calls": [], "finish_reason": None})
        message = choices[index]
        assert message["finish_reason"] is None
        message["finish_reason"] = choice["finish_reason"]
        for call in delta.pop("tool_calls", ()):
            assert call.pop("index") == len(message["tool_calls"])
            message["tool_calls"].append(call)
        for name, added in delta.items():
            message[name] = message.get(name, "") + added
    return choices


def test_whole_answer_byte_by_byte() -> None:
    assert CHAT.answer(asked(), answer(CALLING)).decode() == (
        '{"id":"chatcmpl-a1","object":"chat.completion","created":1700000000,"model":"policy","choices":[{"index":0,"message":'
        '{"role":"assistant","content":"On it é.","refusal":null,"reasoning_content":"Hm.","tool_calls":['
        '{"id":"callc1x0x0","type":"function","function":{"name":"f","arguments":"{\\"b\\": 1.0, \\"a\\": [\\"é\\"]}"}},'
        '{"id":"callc1x0x1","type":"function","function":{"name":"g","arguments":"{broken"}}]},'
        '"logprobs":null,"finish_reason":"tool_calls"}],'
        '"usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15,"prompt_tokens_details":{"cached_tokens":3},'
        '"completion_tokens_details":{"reasoning_tokens":2}}}'
    )


def test_streamed_answer_byte_by_byte() -> None:
    head = 'data: {"id":"chatcmpl-a1","object":"chat.completion.chunk","created":1700000000,"model":"policy","choices":'
    end = ',"logprobs":null,"finish_reason":null}]}\n\n'
    assert held(CHAT, asked(stream_options={"include_usage": True}), answer(CALLING)).decode() == (
        f'{head}[{{"index":0,"delta":{{"role":"assistant","content":""}}{end}'
        f'{head}[{{"index":0,"delta":{{}}{end}'
        f'{head}[{{"index":0,"delta":{{"reasoning_content":"Hm."}}{end}'
        f'{head}[{{"index":0,"delta":{{"content":"On it é."}}{end}'
        f'{head}[{{"index":0,"delta":{{"tool_calls":[{{"index":0,"id":"callc1x0x0","type":"function","function":'
        f'{{"name":"f","arguments":"{{\\"b\\": 1.0, \\"a\\": [\\"é\\"]}}"}}}}]}}{end}'
        f'{head}[{{"index":0,"delta":{{"tool_calls":[{{"index":1,"id":"callc1x0x1","type":"function","function":'
        f'{{"name":"g","arguments":"{{broken"}}}}]}}{end}'
        f'{head}[{{"index":0,"delta":{{}},"logprobs":null,"finish_reason":"tool_calls"}}]}}\n\n'
        f'{head}[],"usage":{{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15,"prompt_tokens_details":{{"cached_tokens":3}},'
        f'"completion_tokens_details":{{"reasoning_tokens":2}}}}}}\n\n'
        "data: [DONE]\n\n"
    )


@pytest.mark.parametrize(
    ("finish", "message", "expected"),
    [
        (FinishReason.STOP, {"role": "assistant", "content": "a"}, "stop"),
        (FinishReason.LENGTH, {"role": "assistant", "content": "a"}, "length"),
        (FinishReason.STOP, CALLING, "tool_calls"),
        (FinishReason.LENGTH, CALLING, "length"),
        (FinishReason.ABORTED, {"role": "assistant", "content": "a"}, "length"),
    ],
)
def test_finish_reason(finish: FinishReason, message: Message, expected: str) -> None:
    body = json.loads(CHAT.answer(asked(), answer(message, finish=finish)))
    assert body["choices"][0]["finish_reason"] == expected


def test_empty_answer_is_empty_text_and_a_lone_call_has_none() -> None:
    """Harnesses tell "said nothing" from "only called a tool" by it."""
    empty, lone = {"role": "assistant", "content": ""}, CALLING | {"content": ""}
    choices = json.loads(CHAT.answer(asked(), answer(empty, lone)))["choices"]
    assert [choice["message"]["content"] for choice in choices] == ["", None]


def test_errors_have_the_official_shape() -> None:
    error = RequestError("messages[0].role: is wrong", field="messages[0].role")
    body = b'{"error":{"message":"messages[0].role: is wrong","type":"invalid_request_error","param":"messages[0].role","code":null}}'
    assert CHAT.error(error) == body
    assert CHAT.stream_error(HEAD, error) == b"data: " + body + b"\n\n"

    overflow = json.loads(CHAT.error(RequestError("too long", kind="context_length_exceeded")))["error"]
    assert (overflow["type"], overflow["code"]) == ("invalid_request_error", "context_length_exceeded")


@given(messages())
def test_an_answer_sent_back_is_understood_as_it_was_sent(message: Message) -> None:
    """Whole or streamed; the next request of a client that keeps everything."""
    whole = json.loads(CHAT.answer(asked(), answer(message)))["choices"][0]["message"]
    [streamed] = assembled(held(CHAT, asked(), answer(message)))
    for sent in (whole, {name: value for name, value in streamed.items() if value and name != "finish_reason"}):
        assert asked(messages=[*ASKED["messages"], sent, *ASKED["messages"]]).messages[1] == message


@given(st.data(), st.lists(messages(), min_size=1, max_size=2))
def test_every_way_to_stream_an_answer_says_the_same(data: st.DataObject, given: list[Message]) -> None:
    """Any part of the first choice leaves before its end, cut anywhere, and all of the next."""
    body = live(CHAT, asked(n=len(given)), answer(*given), data.draw(beginnings(given[0])))
    assert assembled(body) == assembled(held(CHAT, asked(n=len(given)), answer(*given)))
    assert [choice["content"] for choice in assembled(body)] == [message["content"] for message in given]


def client(status: int, body: bytes, kind: str) -> openai.OpenAI:
    """The official client, answered with these bytes."""
    handler: Callable[[httpx2.Request], httpx2.Response] = lambda _: httpx2.Response(status, content=body, headers={"content-type": kind})  # noqa: E731
    http = httpx2.Client(transport=httpx2.MockTransport(handler))
    return openai.OpenAI(base_url="http://localhost/v1", api_key="k", http_client=http, max_retries=0)


def test_official_client_reads_a_whole_answer() -> None:
    with client(200, CHAT.answer(asked(), answer(CALLING)), "application/json") as official:
        completion = official.chat.completions.create(model="policy", messages=[{"role": "user", "content": "hi"}])

    calls = completion.choices[0].message.tool_calls or []
    assert [(call.id, call.type) for call in calls] == [("callc1x0x0", "function"), ("callc1x0x1", "function")]
    assert completion.usage is not None
    assert completion.usage.total_tokens == 15


TWO: dict[str, Any] = {"n": 2, "stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize(
    "body", [held(CHAT, asked(**TWO), answer(CALLING, PLAIN)), live(CHAT, asked(**TWO), answer(CALLING, PLAIN), PIECES)]
)
def test_official_client_assembles_a_stream_of_two_choices(body: bytes) -> None:
    with (
        client(200, body, "text/event-stream") as official,
        official.chat.completions.stream(model="policy", messages=[{"role": "user", "content": "hi"}], n=2) as events,
    ):
        completion = events.get_final_completion()

    first, second = completion.choices
    assert (first.message.content, first.finish_reason) == ("On it é.", "tool_calls")
    assert [call.function.arguments for call in first.message.tool_calls or []] == ['{"b": 1.0, "a": ["é"]}', "{broken"]
    assert (second.message.role, second.message.content, second.finish_reason) == ("assistant", "No.", "stop")
    assert completion.usage is not None


def test_official_client_raises_our_errors() -> None:
    error = RequestError("model: must not be empty", field="model")
    with client(400, CHAT.error(error), "application/json") as official, pytest.raises(openai.BadRequestError) as refused:
        official.chat.completions.create(model="policy", messages=[])
    assert refused.value.param == "model"

    body = CHAT.prologue(HEAD) + CHAT.stream_error(HEAD, RequestError("gone", kind="api_error", status=500))
    with client(200, body, "text/event-stream") as official, pytest.raises(openai.APIError, match="gone"):
        list(official.chat.completions.create(model="policy", messages=[], stream=True))
