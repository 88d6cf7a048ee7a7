"""Anthropic Messages. Format: the API reference of Anthropic, version 2023-06-01, and its betas as Claude Code uses them."""

from typing import Final

from evener.dialects.anthropic_messages_answer import (
    addition_events,
    answer_body,
    answer_events,
    counted_body,
    error_body,
    opening_event,
    ping_event,
    stream_error_event,
)
from evener.dialects.anthropic_messages_request import parse_request
from evener.dialects.canonical import NOTHING, CanonicalAnswer, CanonicalRequest, Head, RequestError, RequestHints, Streamed
from evener.dialects.fields import read_hints

PATHS: Final = frozenset({"v1/messages", "messages"})
COUNTING_PATHS: Final = frozenset(f"{path}/count_tokens" for path in PATHS)


class AnthropicMessages:
    """Implements `canonical.Dialect`. The answer key is the signature of the thinking block. An answer has one choice."""

    name = "anthropic_messages"
    history = "messages"

    def serves(self, path: str) -> bool:
        return _plain(path) in PATHS | COUNTING_PATHS

    def hints(self, path: str, body: bytes) -> RequestHints:
        hints = read_hints(body)
        return RequestHints(model=hints.model) if _plain(path) in COUNTING_PATHS else hints

    def parse(self, path: str, body: bytes) -> CanonicalRequest:
        return parse_request(self.name, body, count_only=_plain(path) in COUNTING_PATHS)

    def answer(self, request: CanonicalRequest, answer: CanonicalAnswer) -> bytes:  # noqa: ARG002 (part of the port)
        return answer_body(answer)

    def counted(self, prompt_tokens: int) -> bytes:
        return counted_body(prompt_tokens)

    def prologue(self, head: Head) -> bytes:
        return opening_event(head)

    def keep_alive(self, head: Head) -> bytes:  # noqa: ARG002 (part of the port)
        return ping_event()

    def delta(self, head: Head, key: str, streamed: Streamed, *, reasoning: str = "", text: str = "") -> bytes:  # noqa: ARG002 (said before)
        return addition_events(key, streamed, reasoning, text)

    def events(self, request: CanonicalRequest, answer: CanonicalAnswer, streamed: Streamed = NOTHING) -> bytes:  # noqa: ARG002 (part of the port)
        return answer_events(answer, streamed)

    def error(self, error: RequestError) -> bytes:
        return error_body(error)

    def stream_error(self, head: Head, error: RequestError) -> bytes:  # noqa: ARG002 (an error of this dialect names no answer)
        return stream_error_event(error)


def _plain(path: str) -> str:
    return path.partition("?")[0].strip("/")
