"""Renders answers of Google's generateContent: whole bodies, streamed events, errors. Pure: equal arguments give equal bytes.

The parts of an answer are, in this order: a thought if there is reasoning, a text if there is text, and a call for each tool call. The
answer key is the `thoughtSignature` of the first call, otherwise of the last part. Every event of a stream is a whole response.
"""

import base64
from http import HTTPStatus
from typing import Any, Final

from evener.dialects.canonical import (
    NOTHING,
    AnswerChoice,
    CanonicalAnswer,
    Head,
    Message,
    Overflow,
    RequestError,
    Streamed,
    head_of,
    rest_of,
)
from evener.dialects.wire import arguments_object, wire_json
from evener.proto.sessions import FinishReason

FINISH: Final = {FinishReason.STOP: "STOP", FinishReason.LENGTH: "MAX_TOKENS", FinishReason.ABORTED: "MAX_TOKENS"}
"""The dialect's finish reasons. It has no better one for an aborted answer."""
STATUS: Final = {
    HTTPStatus.UNAUTHORIZED: "UNAUTHENTICATED",
    HTTPStatus.FORBIDDEN: "PERMISSION_DENIED",
    HTTPStatus.NOT_FOUND: "NOT_FOUND",
    HTTPStatus.TOO_MANY_REQUESTS: "RESOURCE_EXHAUSTED",
    HTTPStatus.SERVICE_UNAVAILABLE: "UNAVAILABLE",
    HTTPStatus.GATEWAY_TIMEOUT: "DEADLINE_EXCEEDED",
}


def answer_body(answer: CanonicalAnswer) -> bytes:
    """Return the body of an answer that is not streamed."""
    candidates = [
        _candidate(_parts(choice, rest_of(choice.message, NOTHING)), index=index, finish=FINISH[choice.finish_reason])
        for index, choice in enumerate(answer.choices)
    ]
    return wire_json({"candidates": candidates, "usageMetadata": _usage(answer), **_head(head_of(answer))})


def counted_body(prompt_tokens: int) -> bytes:
    """Return the answer to a request that only counts tokens."""
    return wire_json({"totalTokens": prompt_tokens})


def empty_event(head: Head) -> bytes:
    """Return an event without content."""
    return _event(head, _candidate([{"text": ""}]))


def addition_events(head: Head, reasoning: str, text: str) -> bytes:
    """Return the events that add reasoning and text to the first choice."""
    parts: list[Message] = [{"text": reasoning, "thought": True}] if reasoning else []
    parts += [{"text": text}] if text else []
    return b"".join(_event(head, _candidate([part])) for part in parts)


def answer_events(answer: CanonicalAnswer, streamed: Streamed) -> bytes:
    """Return all events after what was streamed. The last event of each choice has its finish reason."""
    head, events = head_of(answer), []
    for index, choice in enumerate(answer.choices):
        parts = _parts(choice, rest_of(choice.message, streamed if index == 0 else NOTHING))
        finish, usage = FINISH[choice.finish_reason], {"usageMetadata": _usage(answer)} if index == len(answer.choices) - 1 else {}
        events += [_event(head, _candidate([part], index=index)) for part in parts[:-1]]
        events.append(_event(head, _candidate(parts[-1:], index=index, finish=finish), **usage))
    return b"".join(events)


def error_body(error: RequestError) -> bytes:
    """Return an error object."""
    server = error.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    status = STATUS.get(HTTPStatus(error.status)) or ("INTERNAL" if server else "INVALID_ARGUMENT")
    told = _too_long(error.overflow) if error.overflow else error.message
    return wire_json({"error": {"code": error.status, "message": told, "status": status}})


def stream_error_event(error: RequestError) -> bytes:
    """Return an error as the last event of a stream."""
    return b"data: " + error_body(error) + b"\n\n"


def _parts(choice: AnswerChoice, left: Streamed) -> list[Message]:
    """Return the parts that were not streamed yet, at least one."""
    parts: list[Message] = [{"text": left.reasoning, "thought": True}] if left.reasoning else []
    parts += [{"text": left.text}] if left.text else []
    calls = [_call(call) for call in choice.message.get("tool_calls", ())]
    if not parts and not calls:
        parts = [{"text": ""}]
    signed = calls[0] if calls else parts[-1]
    signed["thoughtSignature"] = base64.b64encode(choice.key.encode()).decode()
    return parts + calls


def _call(call: Message) -> Message:
    return {"functionCall": {"id": call["id"], "name": call["name"], "args": arguments_object(call["arguments"])}}


def _candidate(parts: list[Message], *, index: int = 0, finish: str | None = None) -> Message:
    candidate: Message = {"content": {"role": "model", "parts": parts}}
    return candidate | ({"finishReason": finish} if finish else {}) | {"index": index}


def _usage(answer: CanonicalAnswer) -> dict[str, int]:
    """Return the token counts. Those of thoughts are separate from the candidates'."""
    usage = {
        "promptTokenCount": answer.prompt_tokens,
        "candidatesTokenCount": answer.completion_tokens - answer.reasoning_tokens,
        "totalTokenCount": answer.prompt_tokens + answer.completion_tokens,
    }
    usage |= {"thoughtsTokenCount": answer.reasoning_tokens} if answer.reasoning_tokens else {}
    return usage | ({} if answer.cached_tokens is None else {"cachedContentTokenCount": answer.cached_tokens})


def _too_long(numbers: Overflow) -> str:
    """Return the message by which clients recognise that the context is full."""
    return f"The input token count ({numbers.asked}) exceeds the maximum number of tokens allowed ({numbers.limit})."


def _head(head: Head) -> dict[str, Any]:
    return {"modelVersion": head.model, "responseId": head.answer_id}


def _event(head: Head, candidate: Message, **more: Any) -> bytes:
    return b"data: " + wire_json({"candidates": [candidate], **more, **_head(head)}) + b"\n\n"
