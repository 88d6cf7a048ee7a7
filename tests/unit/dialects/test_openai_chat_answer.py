"""Answers on the wire: golden bytes, and what the official client makes of them."""

import json
from collections.abc import Callable
from typing import Any

import httpx2
import openai
import pytest

from evener.dialects.canonical import AnswerChoice, CanonicalAnswer, CanonicalRequest, Head, Message, RequestError
from evener.dialects.openai_chat import OpenAIChat
from evener.proto.sessions import FinishReason

CHAT = OpenAIChat()
HEAD = Head(answer_id="a1", created=1700000000, model="policy", prompt_tokens=10)
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


def asked(**more: Any) -> CanonicalRequest:
    return CHAT.parse("/v1/chat/completions", json.dumps(ASKED | more).encode())


def answer(*messages: Message, finish: FinishReason = FinishReason.STOP, cached: int | None = 3) -> CanonicalAnswer:
    choices = [AnswerChoice(message=message, finish_reason=finish, key=f"c1x{at}") for at, message in enumerate(messages)]
    return CanonicalAnswer(
        answer_id="a1", created=1700000000, model="policy", choices=choices, prompt_tokens=10, cached_tokens=cached, completion_tokens=5
    )


def stream(given: CanonicalAnswer, **more: Any) -> bytes:
    return CHAT.prologue(HEAD) + CHAT.keep_alive(HEAD) + CHAT.events(asked(**more), given)


def test_whole_answer_byte_by_byte() -> None:
    assert CHAT.answer(asked(), answer(CALLING)).decode() == (
        '{"id":"chatcmpl-a1","object":"chat.completion","created":1700000000,"model":"policy","choices":[{"index":0,"message":'
        '{"role":"assistant","content":"On it é.","refusal":null,"reasoning_content":"Hm.","tool_calls":['
        '{"id":"callc1x0x0","type":"function","function":{"name":"f","arguments":"{\\"b\\": 1.0, \\"a\\": [\\"é\\"]}"}},'
        '{"id":"callc1x0x1","type":"function","function":{"name":"g","arguments":"{broken"}}]},'
        '"logprobs":null,"finish_reason":"tool_calls"}],'
        '"usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15,"prompt_tokens_details":{"cached_tokens":3}}}'
    )


def test_streamed_answer_byte_by_byte() -> None:
    head = 'data: {"id":"chatcmpl-a1","object":"chat.completion.chunk","created":1700000000,"model":"policy","choices":'
    end = ',"logprobs":null,"finish_reason":null}]}\n\n'
    assert stream(answer(CALLING), stream_options={"include_usage": True}).decode() == (
        f'{head}[{{"index":0,"delta":{{"role":"assistant","content":""}}{end}'
        f'{head}[{{"index":0,"delta":{{}}{end}'
        f'{head}[{{"index":0,"delta":{{"reasoning_content":"Hm."}}{end}'
        f'{head}[{{"index":0,"delta":{{"content":"On it é."}}{end}'
        f'{head}[{{"index":0,"delta":{{"tool_calls":[{{"index":0,"id":"callc1x0x0","type":"function","function":'
        f'{{"name":"f","arguments":"{{\\"b\\": 1.0, \\"a\\": [\\"é\\"]}}"}}}}]}}{end}'
        f'{head}[{{"index":0,"delta":{{"tool_calls":[{{"index":1,"id":"callc1x0x1","type":"function","function":'
        f'{{"name":"g","arguments":"{{broken"}}}}]}}{end}'
        f'{head}[{{"index":0,"delta":{{}},"logprobs":null,"finish_reason":"tool_calls"}}]}}\n\n'
        f'{head}[],"usage":{{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15,"prompt_tokens_details":{{"cached_tokens":3}}}}}}\n\n'
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
    messages = [choice["message"] for choice in json.loads(CHAT.answer(asked(), answer(empty, lone)))["choices"]]
    assert [message["content"] for message in messages] == ["", None]


def test_errors_have_the_official_shape() -> None:
    error = RequestError("messages[0].role: is wrong", field="messages[0].role")
    body = b'{"error":{"message":"messages[0].role: is wrong","type":"invalid_request_error","param":"messages[0].role","code":null}}'
    assert CHAT.error(error) == body
    assert CHAT.stream_error(error) == b"data: " + body + b"\n\n"

    overflow = json.loads(CHAT.error(RequestError("too long", kind="context_length_exceeded")))["error"]
    assert (overflow["type"], overflow["code"]) == ("invalid_request_error", "context_length_exceeded")


def test_answer_sent_back_is_understood_as_it_was_sent() -> None:
    """The next request of a harness that keeps everything."""
    sent = json.loads(CHAT.answer(asked(), answer(CALLING)))["choices"][0]["message"]
    assert asked(messages=[*ASKED["messages"], sent]).messages[1] == CALLING


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


def test_official_client_assembles_a_stream_of_two_choices() -> None:
    plain: Message = {"role": "assistant", "content": "No."}
    body = stream(answer(CALLING, plain), n=2, stream=True, stream_options={"include_usage": True})
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

    body = CHAT.prologue(HEAD) + CHAT.stream_error(RequestError("gone", kind="api_error", status=500))
    with client(200, body, "text/event-stream") as official, pytest.raises(openai.APIError, match="gone"):
        list(official.chat.completions.create(model="policy", messages=[], stream=True))
