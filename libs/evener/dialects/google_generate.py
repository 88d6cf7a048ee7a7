"""Google generateContent. Format: the API reference of the Gemini API, v1beta."""

import re
from typing import Final
from urllib.parse import parse_qs, unquote

from evener.dialects.canonical import NOTHING, CanonicalAnswer, CanonicalRequest, Head, RequestError, RequestHints, Streamed
from evener.dialects.fields import refuse
from evener.dialects.google_generate_answer import (
    addition_events,
    answer_body,
    answer_events,
    counted_body,
    empty_event,
    error_body,
    stream_error_event,
)
from evener.dialects.google_generate_request import parse_request

PATH: Final = re.compile(
    r"(?:v1/|v1alpha/|v1beta/)?models/(?P<model>.*):(?P<verb>generateContent|streamGenerateContent|countTokens)", re.DOTALL
)
STREAM: Final = "streamGenerateContent"


class GoogleGenerate:
    """Implements `canonical.Dialect`. The answer key is a thoughtSignature. From it, calls get back the ids that clients drop."""

    name = "google_generate"
    history = "contents"

    def serves(self, path: str) -> bool:
        return _match(path) is not None

    def hints(self, path: str, body: bytes) -> RequestHints:  # noqa: ARG002 (the path says it all)
        found = _match(path)
        return RequestHints(model=found["model"], stream=found["verb"] == STREAM and _asks_for_events(path)) if found else RequestHints()

    def parse(self, path: str, body: bytes) -> CanonicalRequest:
        found = _match(path) or refuse("", f"{path} is not served")
        model = found["model"] or refuse("model", "must not be empty")
        stream = found["verb"] == STREAM
        if stream and not _asks_for_events(path):
            refuse("alt", "streams are served as events: add ?alt=sse")
        return parse_request(self.name, model, body, stream=stream, count_only=found["verb"] == "countTokens")

    def answer(self, request: CanonicalRequest, answer: CanonicalAnswer) -> bytes:  # noqa: ARG002 (part of the port)
        return answer_body(answer)

    def counted(self, prompt_tokens: int) -> bytes:
        return counted_body(prompt_tokens)

    def prologue(self, head: Head) -> bytes:  # noqa: ARG002 (every event of this dialect is whole)
        return b""

    def keep_alive(self, head: Head) -> bytes:
        return empty_event(head)

    def delta(self, head: Head, key: str, streamed: Streamed, *, reasoning: str = "", text: str = "") -> bytes:  # noqa: ARG002 (stateless)
        return addition_events(head, reasoning, text)

    def events(self, request: CanonicalRequest, answer: CanonicalAnswer, streamed: Streamed = NOTHING) -> bytes:  # noqa: ARG002 (part of the port)
        return answer_events(answer, streamed)

    def error(self, error: RequestError) -> bytes:
        return error_body(error)

    def stream_error(self, head: Head, error: RequestError) -> bytes:  # noqa: ARG002 (an error of this dialect names no answer)
        return stream_error_event(error)


def _match(path: str) -> re.Match[str] | None:
    return PATH.fullmatch(unquote(path.partition("?")[0]).strip("/"))


def _asks_for_events(path: str) -> bool:
    query = parse_qs(path.partition("?")[2])
    return "sse" in query.get("alt", []) + query.get("$alt", [])
