"""Answers on the wire: golden bytes, every way to stream one, and what the official client makes of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.sdks import genai
from tests.support.server_sent_events import events_in
from tests.unit.dialects.arbitrary import HEAD, PIECES, answer, beginnings, held, live, messages

from evener.dialects.canonical import CanonicalRequest, Overflow, RequestError
from evener.dialects.google_generate import GoogleGenerate
from evener.proto.sessions import FinishReason
from evener.tokens.digests import Message

GOOGLE = GoogleGenerate()
ASKED: dict[str, Any] = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
CALLING: Message = {
    "role": "assistant",
    "content": "On it é.\u2028",
    "reasoning": "Hm.",
    "tool_calls": [
        {"id": "callc1x0x0", "name": "f", "arguments": {"b": 1.0, "a": ["é"]}},
        {"id": "callc1x0x1", "name": "g", "arguments": "{broken"},
    ],
}
PLAIN: Message = {"role": "assistant", "content": "No."}


def asked(**more: Any) -> CanonicalRequest:
    return GOOGLE.parse("/v1beta/models/policy:generateContent", json.dumps(ASKED | more).encode())


def candidates(body: bytes) -> list[Message]:
    """The candidates of a stream, event by event."""
    events = [event.value() for event in events_in(body)]
    assert all(event["responseId"] == "a1" for event in events)
    assert ["usageMetadata" in event for event in events] == [False] * (len(events) - 1) + [True]
    return [candidate for event in events for candidate in event["candidates"]]


def returned(*contents: Message) -> Message:
    """What a client that keeps these contents says in its next request, as canonical."""
    return asked(contents=[*ASKED["contents"], *contents]).messages[1]


def test_whole_answer_byte_by_byte() -> None:
    assert GOOGLE.answer(asked(), answer(CALLING, PLAIN)).decode() == (
        '{"candidates":[{"content":{"role":"model","parts":[{"text":"Hm.","thought":true},{"text":"On it é.\\u2028"},'
        '{"functionCall":{"id":"callc1x0x0","name":"f","args":{"b":1.0,"a":["é"]}},"thoughtSignature":"YzF4MA=="},'
        '{"functionCall":{"id":"callc1x0x1","name":"g","args":{"__unparsedToolInput":{"raw":"{broken","len":7}}}}]},'
        '"finishReason":"STOP","index":0},'
        '{"content":{"role":"model","parts":[{"text":"No.","thoughtSignature":"YzF4MQ=="}]},"finishReason":"STOP","index":1}],'
        '"usageMetadata":{"promptTokenCount":10,"candidatesTokenCount":3,"totalTokenCount":15,"thoughtsTokenCount":2,'
        '"cachedContentTokenCount":3},"modelVersion":"policy","responseId":"a1"}'
    )


def test_streamed_answer_byte_by_byte() -> None:
    head = 'data: {"candidates":[{"content":{"role":"model","parts":['
    end = '"modelVersion":"policy","responseId":"a1"}\n\n'
    assert held(GOOGLE, asked(), answer(CALLING)).decode() == (
        f'{head}{{"text":""}}]}},"index":0}}],{end}'
        f'{head}{{"text":"Hm.","thought":true}}]}},"index":0}}],{end}'
        f'{head}{{"text":"On it é.\\u2028"}}]}},"index":0}}],{end}'
        f'{head}{{"functionCall":{{"id":"callc1x0x0","name":"f","args":{{"b":1.0,"a":["é"]}}}},'
        f'"thoughtSignature":"YzF4MA=="}}]}},"index":0}}],{end}'
        f'{head}{{"functionCall":{{"id":"callc1x0x1","name":"g","args":{{"__unparsedToolInput":{{"raw":"{{broken","len":7}}}}}}}}]}},'
        f'"finishReason":"STOP","index":0}}],"usageMetadata":{{"promptTokenCount":10,"candidatesTokenCount":3,"totalTokenCount":15,'
        f'"thoughtsTokenCount":2,"cachedContentTokenCount":3}},{end}'
    )


@pytest.mark.parametrize(
    ("finish", "expected"), [(FinishReason.STOP, "STOP"), (FinishReason.LENGTH, "MAX_TOKENS"), (FinishReason.ABORTED, "MAX_TOKENS")]
)
def test_finish_reason(finish: FinishReason, expected: str) -> None:
    assert json.loads(GOOGLE.answer(asked(), answer(PLAIN, finish=finish)))["candidates"][0]["finishReason"] == expected


def test_usage_has_only_what_is_known() -> None:
    usage = json.loads(GOOGLE.answer(asked(), answer(PLAIN, cached=None, reasoning_tokens=0)))["usageMetadata"]
    assert usage == {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}


@given(messages(), st.booleans())
def test_an_answer_sent_back_is_understood_as_it_was_sent(message: Message, ids_dropped: bool) -> None:  # noqa: FBT001 - drawn
    """By a client that keeps all, or drops the ids: the key is always there, and the ids come back from it."""
    [candidate] = json.loads(GOOGLE.answer(asked(), answer(message)))["candidates"]
    if ids_dropped:
        for part in candidate["content"]["parts"]:
            part.get("functionCall", {}).pop("id", None)
    assert returned(candidate["content"]) == message | {"key": "c1x0"}


@given(st.data(), st.lists(messages(), min_size=1, max_size=2))
def test_every_way_to_stream_an_answer_says_the_same(data: st.DataObject, given: list[Message]) -> None:
    """Any part of the first choice leaves before its end, cut anywhere, and all of the next; a client may keep each event as a content."""
    streamed = candidates(live(GOOGLE, asked(), answer(*given), data.draw(beginnings(given[0]))))
    for index, message in enumerate(given):
        own = [candidate for candidate in streamed if candidate["index"] == index]
        assert ["finishReason" in candidate for candidate in own] == [False] * (len(own) - 1) + [True]
        assert returned(*(candidate["content"] for candidate in own)) == message | {"key": f"c1x{index}"}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RequestError("no", status=400, kind="budget_spent"), "INVALID_ARGUMENT"),
        (RequestError("no", status=401, kind="authentication_error"), "UNAUTHENTICATED"),
        (RequestError("no", status=404, kind="not_found_error"), "NOT_FOUND"),
        (RequestError("no", status=429, kind="rate_limit_error"), "RESOURCE_EXHAUSTED"),
        (RequestError("no", status=500, kind="server_error"), "INTERNAL"),
        (RequestError("no", status=503, kind="overloaded_error"), "UNAVAILABLE"),
    ],
)
def test_errors_have_the_official_shape(error: RequestError, status: str) -> None:
    body = GOOGLE.error(error)
    assert json.loads(body) == {"error": {"code": error.status, "message": "no", "status": status}}
    assert GOOGLE.stream_error(HEAD, error) == b"data: " + body + b"\n\n"


def test_a_full_context_is_reported_in_the_words_that_clients_know() -> None:
    """With the numbers, where they are known: they are not guessed from a text."""
    for overflow, told in (
        (Overflow(asked=5000, limit=4096), "The input token count (5000) exceeds the maximum number of tokens allowed (4096)."),
        (None, "7 do not fit into 3"),
    ):
        refused = RequestError("7 do not fit into 3", kind="context_length_exceeded", overflow=overflow)
        assert json.loads(GOOGLE.error(refused))["error"]["message"] == told


def client(status: int, body: bytes, kind: str = "application/json") -> genai.Client:
    """The official client, answered with these bytes."""
    handler: Callable[[httpx2.Request], httpx2.Response] = lambda _: httpx2.Response(status, content=body, headers={"content-type": kind})  # noqa: E731
    http = httpx2.Client(transport=httpx2.MockTransport(handler))
    options = genai.types.HttpOptions(base_url="http://localhost", httpx_client=http)
    return genai.Client(api_key="k", vertexai=False, http_options=options)


def check_parts(parts: list[genai.types.Part]) -> None:
    thought, text, first, second = parts
    assert (thought.text, thought.thought) == ("Hm.", True)
    assert text.text == "On it é.\u2028"
    assert first.thought_signature == b"c1x0"
    assert first.function_call is not None
    assert (first.function_call.id, first.function_call.args) == ("callc1x0x0", {"b": 1.0, "a": ["é"]})
    assert second.function_call is not None
    assert second.function_call.args == {"__unparsedToolInput": {"raw": "{broken", "len": 7}}


def test_official_client_reads_a_whole_answer() -> None:
    with client(200, GOOGLE.answer(asked(), answer(CALLING))) as official:
        response = official.models.generate_content(model="policy", contents="hi")

    check_parts(response.parts or [])
    assert response.usage_metadata is not None
    assert response.usage_metadata.total_token_count == 15
    assert response.candidates is not None
    assert response.candidates[0].finish_reason == genai.types.FinishReason.STOP


@pytest.mark.parametrize("body", [held(GOOGLE, asked(), answer(CALLING)), live(GOOGLE, asked(), answer(CALLING), PIECES)])
def test_official_client_reads_a_stream_and_its_chat_returns_it(body: bytes) -> None:
    """Its chat keeps every event of a valid answer; what it would send next is our answer again."""
    with client(200, body, "text/event-stream") as official:
        chat = official.chats.create(model="policy")
        list(chat.send_message_stream("hi"))

    kept = chat.get_history(curated=True)
    sent = [content.model_dump(mode="json", by_alias=True, exclude_none=True) for content in kept]
    assert asked(contents=sent).messages[1] == CALLING | {"key": "c1x0"}


def test_official_client_reads_a_count() -> None:
    with client(200, GOOGLE.counted(12)) as official:
        assert official.models.count_tokens(model="policy", contents="hi").total_tokens == 12


def test_official_client_raises_our_errors() -> None:
    error = RequestError("contents: must not be empty", field="contents")
    with client(400, GOOGLE.error(error)) as official, pytest.raises(genai.errors.ClientError, match="contents: must not be empty"):
        official.models.generate_content(model="policy", contents="hi")

    body = GOOGLE.keep_alive(HEAD) + GOOGLE.stream_error(HEAD, RequestError("gone", kind="overloaded_error", status=503))
    with client(200, body, "text/event-stream") as official, pytest.raises(genai.errors.ServerError, match="gone"):
        list(official.models.generate_content_stream(model="policy", contents="hi"))
