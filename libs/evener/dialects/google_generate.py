"""Google generateContent. Format: the API reference of the Gemini API, v1beta.

The parts of an answer are, in this order: a thought if there is reasoning, a text if there is text, and a call for each tool call. The
answer key is the `thoughtSignature` of the first call, otherwise of the last part. Every event of a stream is a whole response.
"""

import base64
import re
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs, unquote

from evener.dialects.canonical import (
    NOTHING_STREAMED,
    AnswerChoice,
    CanonicalAnswer,
    CanonicalRequest,
    Head,
    Overflow,
    RequestError,
    RequestHints,
    Streamed,
    head_of,
    rest_of,
)
from evener.dialects.fields import as_model, refuse
from evener.dialects.google_generate_request import parse_request
from evener.dialects.wire import arguments_object, wire_json
from evener.proto.sessions import FinishReason
from evener.tokens.digests import Message

GENERATE_PATH: Final = re.compile(
    r"(?:v1/|v1alpha/|v1beta/)?models/(?P<model>.*):(?P<verb>generateContent|streamGenerateContent|countTokens)", re.DOTALL
)
STREAM: Final = "streamGenerateContent"
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


class GoogleGenerate:
    """Implements `canonical.Dialect`. The answer key is a thoughtSignature. From it, calls get back the ids that clients drop."""

    name = "google_generate"
    history = "contents"
    endpoint = "/v1beta/models/MODEL:generateContent"
    key_header = "x-goog-api-key"

    def serves(self, path: str) -> bool:
        return _match(path) is not None

    def hints(self, path: str, body: bytes) -> RequestHints:  # noqa: ARG002 (the path says it all)
        found = _match(path)
        return RequestHints(model=found["model"], stream=found["verb"] == STREAM and _asks_for_events(path)) if found else RequestHints()

    def parse(self, path: str, body: bytes) -> CanonicalRequest:
        found = _match(path) or refuse("", f"{path} is not served")
        model = as_model(found["model"])
        stream = found["verb"] == STREAM
        if stream and not _asks_for_events(path):
            refuse("alt", "streams are served as events: add ?alt=sse")
        return parse_request(self.name, model, body, stream=stream, count_only=found["verb"] == "countTokens")

    def answer(self, request: CanonicalRequest, answer: CanonicalAnswer) -> bytes:  # noqa: ARG002 (part of the port)
        candidates = [
            _candidate(_parts(choice, rest_of(choice.message, NOTHING_STREAMED)), index=index, finish=FINISH[choice.finish_reason])
            for index, choice in enumerate(answer.choices)
        ]
        return wire_json({"candidates": candidates, "usageMetadata": _usage(answer), **_head(head_of(answer))})

    def counted(self, prompt_tokens: int) -> bytes:
        return wire_json({"totalTokens": prompt_tokens})

    def prologue(self, head: Head) -> bytes:  # noqa: ARG002 (every event of this dialect is whole)
        return b""

    def keep_alive(self, head: Head) -> bytes:
        return _event(head, _candidate([{"text": ""}]))

    def delta(self, head: Head, key: str, streamed: Streamed, *, reasoning: str = "", text: str = "") -> bytes:  # noqa: ARG002 (stateless)
        return b"".join(_event(head, _candidate([part])) for part in _said(reasoning, text))

    def events(self, request: CanonicalRequest, answer: CanonicalAnswer, streamed: Streamed = NOTHING_STREAMED) -> bytes:  # noqa: ARG002 (part of the port)
        """Return all events after what was streamed. The last event of each choice has its finish reason."""
        head, events = head_of(answer), []
        for index, choice in enumerate(answer.choices):
            parts = _parts(choice, rest_of(choice.message, streamed if index == 0 else NOTHING_STREAMED))
            finish, usage = FINISH[choice.finish_reason], {"usageMetadata": _usage(answer)} if index == len(answer.choices) - 1 else {}
            events += [_event(head, _candidate([part], index=index)) for part in parts[:-1]]
            events.append(_event(head, _candidate(parts[-1:], index=index, finish=finish), **usage))
        return b"".join(events)

    def error(self, error: RequestError) -> bytes:
        server = error.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        status = STATUS.get(HTTPStatus(error.status)) or ("INTERNAL" if server else "INVALID_ARGUMENT")
        told = _too_long(error.overflow) if error.overflow else error.message
        return wire_json({"error": {"code": error.status, "message": told, "status": status}})

    def stream_error(self, head: Head, error: RequestError) -> bytes:  # noqa: ARG002 (an error of this dialect names no answer)
        return b"data: " + self.error(error) + b"\n\n"


def _match(path: str) -> re.Match[str] | None:
    return GENERATE_PATH.fullmatch(unquote(path.partition("?")[0]).strip("/"))


def _asks_for_events(path: str) -> bool:
    query = parse_qs(path.partition("?")[2])
    return "sse" in query.get("alt", []) + query.get("$alt", [])


def _said(reasoning: str, text: str) -> list[Message]:
    """Return the parts that hold reasoning and text, if there are any."""
    parts: list[Message] = [{"text": reasoning, "thought": True}] if reasoning else []
    return parts + ([{"text": text}] if text else [])


def _parts(choice: AnswerChoice, left: Streamed) -> list[Message]:
    """Return the parts that were not streamed yet, at least one."""
    parts = _said(left.reasoning, left.text)
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
