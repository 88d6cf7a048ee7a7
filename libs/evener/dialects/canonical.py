"""The one form of requests and answers that everything behind the dialects sees. Pure: no I/O, no clock.

A canonical message is a JSON object with, in this order of meaning:

- `role`: `system`, `developer`, `user`, `assistant` or `tool`;
- `content`: a string, or a list of parts (`{"type": "text", "text"}`, `{"type": "image", "digest", "media_type"}`); a list of
  text parts only is joined into a string, with a newline between parts; absent or null is "";
- assistants: `reasoning` (string, only if there is any), `tool_calls` (only if there are any): a list of
  `{"id", "name", "arguments"}`, arguments a parsed JSON object, or a string where it is not valid JSON;
- tools: `tool_call_id`; `name` where given.

A canonical tool is `{"name", "description", "parameters"}` (JSON Schema), the latter two only where given.
Cache markers and everything a model cannot see are gone.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from evener.proto.blobs import Sha256
from evener.proto.errors import EvenerError
from evener.proto.sessions import FinishReason

Message = dict[str, Any]


class RequestError(EvenerError):
    """Correct the request: the message names the field."""

    def __init__(self, message: str, *, field: str | None = None, status: int = 400, kind: str = "invalid_request_error") -> None:
        """`kind` is the dialect-neutral error type; each dialect spells it in its own shape.

        Used: `invalid_request_error`, `context_length_exceeded`, `authentication_error`, `not_found_error`, `rate_limit_error`,
        `overloaded_error`, `api_error`.
        """
        super().__init__(message)
        self.message = message
        self.field = field
        self.status = status
        self.kind = kind

    def __str__(self) -> str:
        """Only the message: a harness shows it to its user."""
        return self.message


class Image(Struct, frozen=True, kw_only=True):
    """The bytes of an image that a message names by its digest."""

    digest: Sha256
    media_type: str
    data: bytes


class CanonicalRequest(Struct, frozen=True, kw_only=True, eq=False):
    """A harness's request for answers."""

    dialect: str
    model: str
    messages: tuple[Message, ...]
    tools: tuple[Message, ...]
    stream: bool
    include_usage: bool = False
    """Chat: the stream ends with a usage chunk."""
    n: int = 1
    max_tokens: int | None = None
    """The harness's wish."""
    wishes: Mapping[str, Any]
    """Sampling parameters as sent, and harmless unknown fields: recorded, not followed."""
    stop: tuple[str, ...] = ()
    images: tuple[Image, ...] = ()
    """Each once, in order of appearance."""


class AnswerChoice(Struct, frozen=True, kw_only=True, eq=False):
    """One answer for the wire."""

    message: Message
    finish_reason: FinishReason


class CanonicalAnswer(Struct, frozen=True, kw_only=True, eq=False):
    """What a dialect renders. Every id and time is from the record, so that rendering again gives the same bytes."""

    answer_id: str
    created: int
    model: str
    choices: Sequence[AnswerChoice]
    prompt_tokens: int
    cached_tokens: int | None
    completion_tokens: int


class Dialect(Protocol):
    """A provider's wire format: one pure module each, see `openai_chat`. A streamed answer is `prologue` + `events`."""

    name: str

    def serves(self, path: str) -> bool:
        """Return whether this path (with or without its version prefix) asks for answers in this dialect."""
        ...

    def parse(self, path: str, body: bytes) -> CanonicalRequest:
        """Return the request. Raises RequestError naming the field."""
        ...

    def answer(self, request: CanonicalRequest, answer: CanonicalAnswer) -> bytes:
        """Return the whole body of an answer that is not streamed."""
        ...

    def prologue(self, answer_id: str, created: int, model: str) -> bytes:
        """Return what opens a stream, before anything is sampled."""
        ...

    def keep_alive(self, answer_id: str, created: int, model: str) -> bytes:
        """Return a harmless protocol event, between prologue and events."""
        ...

    def events(self, request: CanonicalRequest, answer: CanonicalAnswer) -> bytes:
        """Return everything after the prologue, the end of the stream included."""
        ...

    def error(self, error: RequestError) -> bytes:
        """Return the body of an error before any header left."""
        ...

    def stream_error(self, error: RequestError) -> bytes:
        """Return the event that ends a stream with an error."""
        ...


def text_of(message: Message) -> str:
    """Return the text of a message's content, images left out."""
    content = message.get("content", "")
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content if part["type"] == "text")


def canonical_bytes(value: Any, *, loose_numbers: bool = False) -> bytes:
    """Return JSON with sorted keys and no spaces: equal values give equal bytes, whatever the order of their keys.

    1 and 1.0 differ. With `loose_numbers` all numbers are what JavaScript keeps of them: 1.0 is 1, long integers lose digits.
    """
    kept = _loose(value) if loose_numbers else value
    return json.dumps(kept, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


def _loose(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _loose(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_loose(item) for item in value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    try:
        number = float(value)
    except OverflowError:  # JavaScript has Infinity there, which is no JSON
        return None
    return int(number) if number.is_integer() else number
