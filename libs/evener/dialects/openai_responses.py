"""OpenAI Responses. Format: the API reference of OpenAI, and what Codex sends and needs."""

from typing import Final

from evener.dialects.canonical import (
    NOTHING_STREAMED,
    CanonicalAnswer,
    CanonicalRequest,
    Head,
    RequestError,
    RequestHints,
    Streamed,
    rest_of,
)
from evener.dialects.fields import read_hints
from evener.dialects.openai_responses_answer import ended_response, error_fields, open_response, output_items
from evener.dialects.openai_responses_request import ResponsesParser
from evener.dialects.openai_responses_stream import PROLOGUE_EVENTS, EventWriter, event
from evener.dialects.wire import ERROR_CODES, wire_json

PATHS: Final = frozenset({"v1/responses", "responses"})
COUNTING: Final = "/input_tokens"
LAST: Final = 2**31 - 1
STREAM_CODES: Final = {
    "context_length_exceeded": "context_length_exceeded",
    "rate_limit_error": "rate_limit_exceeded",
    "overloaded_error": "rate_limit_exceeded",
}
"""The codes of a failed response. Codex gives up at once on `server_is_overloaded`, and tries again on this one."""
RETRIED: Final = "server_error"
FATAL: Final = "invalid_prompt"


class OpenAIResponses:
    """Implements `canonical.Dialect`. The answer key is part of the ids of all items and of `encrypted_content`."""

    name = "openai_responses"
    history = "input"
    endpoint = "/v1/responses"
    key_header = "authorization"

    def __init__(self) -> None:
        self._parser = ResponsesParser()

    def serves(self, path: str) -> bool:
        return _place(path).removesuffix(COUNTING) in PATHS

    def hints(self, path: str, body: bytes) -> RequestHints:
        return RequestHints(model=read_hints(body).model) if _counts(path) else read_hints(body)

    def parse(self, path: str, body: bytes) -> CanonicalRequest:
        return self._parser.parse(self.name, body, count_only=_counts(path))

    def answer(self, request: CanonicalRequest, answer: CanonicalAnswer) -> bytes:
        return wire_json(ended_response(answer, output_items(answer, request.forms)))

    def counted(self, prompt_tokens: int) -> bytes:
        return wire_json({"object": "response.input_tokens", "input_tokens": prompt_tokens})

    def prologue(self, head: Head) -> bytes:
        response = open_response(head)
        return event("response.created", 0, response=response) + event("response.in_progress", 1, response=response)

    def keep_alive(self, head: Head) -> bytes:
        return event("response.in_progress", PROLOGUE_EVENTS - 1, response=open_response(head))

    def delta(self, head: Head, key: str, streamed: Streamed, *, reasoning: str = "", text: str = "") -> bytes:  # noqa: ARG002 (no event names it)
        writer = EventWriter(key, streamed)
        writer.add_reasoning(reasoning)
        writer.add_text(text)
        return writer.written()

    def events(self, request: CanonicalRequest, answer: CanonicalAnswer, streamed: Streamed = NOTHING_STREAMED) -> bytes:
        [choice] = answer.choices
        items = output_items(answer, request.forms)
        writer = EventWriter(choice.key, streamed)
        rest = rest_of(choice.message, streamed)
        writer.add_reasoning(rest.reasoning)
        writer.add_text(rest.text)
        writer.end(items)
        response = ended_response(answer, items)
        writer.write(f"response.{response['status']}", response=response)
        return writer.written()

    def error(self, error: RequestError) -> bytes:
        return wire_json({"error": error_fields(error, error.kind if error.kind in ERROR_CODES else None)})

    def stream_error(self, head: Head, error: RequestError) -> bytes:
        """Return the end of a stream: first for clients that read the error from the response, then for those that expect an `error`."""
        code = STREAM_CODES.get(error.kind) or (FATAL if _is_final(error.status) else RETRIED)
        response = open_response(head) | {"status": "failed", "error": {"code": code, "message": error.message}}
        failed = event("response.failed", LAST - 1, response=response)
        return failed + event("error", LAST, code=code, message=error.message, param=error.field, error=error_fields(error, code))


def _is_final(status: int) -> bool:
    """Return whether trying again is of no use."""
    return 400 <= status < 500 and status not in (408, 409, 429)  # noqa: PLR2004 - HTTP statuses


def _place(path: str) -> str:
    return path.partition("?")[0].strip("/")


def _counts(path: str) -> bool:
    return _place(path).endswith(COUNTING)
