"""A live stream of each dialect, every character a delta with a keep-alive after it, through the official client one byte at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
from tests.support.sdks import anthropic, genai, openai
from tests.unit.dialects.arbitrary import answer, live

from evener.dialects.anthropic_messages import AnthropicMessages
from evener.dialects.canonical import Dialect, Streamed
from evener.dialects.google_generate import GoogleGenerate
from evener.dialects.openai_chat import OpenAIChat
from evener.dialects.openai_responses import OpenAIResponses
from evener.tokens.digests import Message

TEXT = "é😀\u2028 on\r\n it"
REASONING = "hm\u0085 ok"
MESSAGE: Message = {
    "role": "assistant",
    "content": TEXT,
    "reasoning": REASONING,
    "tool_calls": [
        {"id": "callc1x0x0", "name": "f", "arguments": {"b": 1.0, "a": ["é\u2029"]}},
        {"id": "callc1x0x1", "name": "g", "arguments": "{broken"},
    ],
}
ARGUMENTS = ['{"b": 1.0, "a": ["é\u2029"]}', "{broken"]
UNPARSED = {"__unparsedToolInput": {"raw": "{broken", "len": 7}}
HI: Any = [{"role": "user", "content": "hi"}]


class Bytes(httpx2.SyncByteStream):
    """A body whose bytes come one by one."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def __iter__(self) -> Iterator[bytes]:
        return (self._body[at : at + 1] for at in range(len(self._body)))


def streaming(dialect: Dialect, path: str, body: dict[str, Any]) -> httpx2.Client:
    """What answers every request with the message."""
    pieces = [Streamed(reasoning=one) for one in REASONING] + [Streamed(text=one) for one in TEXT]
    sent = live(dialect, dialect.parse(path, json.dumps(body).encode()), answer(MESSAGE), pieces)
    headers = {"content-type": "text/event-stream"}
    return httpx2.Client(transport=httpx2.MockTransport(lambda _: httpx2.Response(200, stream=Bytes(sent), headers=headers)))


def openai_client(http: httpx2.Client) -> openai.OpenAI:
    return openai.OpenAI(base_url="http://localhost/v1", api_key="k", http_client=http, max_retries=0)


def test_openai_chat() -> None:
    body = {"model": "policy", "messages": HI, "stream": True, "stream_options": {"include_usage": True}}
    http = streaming(OpenAIChat(), "/v1/chat/completions", body)
    with openai_client(http) as client, client.chat.completions.stream(model="policy", messages=HI) as events:
        completion = events.get_final_completion()

    [choice] = completion.choices
    assert (choice.message.content, choice.message.model_extra) == (TEXT, {"reasoning_content": REASONING})
    assert [call.function.arguments for call in choice.message.tool_calls or ()] == ARGUMENTS
    assert completion.usage is not None
    assert completion.usage.total_tokens == 15


def test_openai_responses() -> None:
    http = streaming(OpenAIResponses(), "/v1/responses", {"model": "policy", "input": HI, "stream": True})
    with openai_client(http) as client, client.responses.stream(model="policy", input="hi") as events:
        response = events.get_final_response()

    reasoning, _, *calls = response.output
    assert reasoning.type == "reasoning"
    assert [summary.text for summary in reasoning.summary] == [REASONING]
    assert response.output_text == TEXT
    assert [call.arguments for call in calls if call.type == "function_call"] == ARGUMENTS
    assert response.usage is not None
    assert response.usage.total_tokens == 15


def test_anthropic_messages() -> None:
    http = streaming(AnthropicMessages(), "/v1/messages", {"model": "policy", "max_tokens": 9, "messages": HI, "stream": True})
    with (
        anthropic.Anthropic(base_url="http://localhost", api_key="k", http_client=http, max_retries=0) as client,
        client.messages.stream(model="policy", max_tokens=9, messages=HI) as events,
    ):
        message = events.get_final_message()

    thinking, text, *calls = message.content
    assert thinking.type == "thinking"
    assert (thinking.thinking, thinking.signature) == (REASONING, "c1x0")
    assert text.type == "text"
    assert text.text == TEXT
    assert [call.input for call in calls if call.type == "tool_use"] == [{"b": 1.0, "a": ["é\u2029"]}, UNPARSED]
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens, message.usage.output_tokens) == (7, 3, 5)


def test_google_generate() -> None:
    http = streaming(GoogleGenerate(), "/v1beta/models/policy:streamGenerateContent?alt=sse", {"contents": [{"parts": [{"text": "hi"}]}]})
    options = genai.types.HttpOptions(base_url="http://localhost", httpx_client=http)
    client = genai.Client(api_key="k", vertexai=False, http_options=options)
    events = list(client.models.generate_content_stream(model="policy", contents="hi"))

    parts = [part for event in events for part in event.parts or ()]
    assert "".join(part.text or "" for part in parts if part.thought) == REASONING
    assert "".join(part.text or "" for part in parts if not part.thought) == TEXT
    assert [part.function_call.args for part in parts if part.function_call] == [{"b": 1.0, "a": ["é\u2029"]}, UNPARSED]
    assert events[-1].usage_metadata is not None
    assert events[-1].usage_metadata.total_token_count == 15
