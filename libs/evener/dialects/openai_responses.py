"""OpenAI Responses. Format: the API reference of OpenAI, and what Codex sends and needs."""

from typing import Final

from evener.dialects.canonical import NOTHING, CanonicalAnswer, CanonicalRequest, Head, RequestError, RequestHints, Streamed
from evener.dialects.fields import read_hints
from evener.dialects.openai_responses_answer import answer_body, counted_body, error_body
from evener.dialects.openai_responses_request import ResponsesParser
from evener.dialects.openai_responses_stream import addition_events, answer_events, error_events, in_progress_event, opening_events

PATHS: Final = frozenset({"v1/responses", "responses"})
COUNTING: Final = "/input_tokens"


class OpenAIResponses:
    """Implements `canonical.Dialect`. The answer key is part of the ids of all items and of `encrypted_content`."""

    name = "openai_responses"
    history = "input"

    def __init__(self) -> None:
        self._parser = ResponsesParser()

    def serves(self, path: str) -> bool:
        return _place(path).removesuffix(COUNTING) in PATHS

    def hints(self, path: str, body: bytes) -> RequestHints:
        return RequestHints(model=read_hints(body).model) if _counts(path) else read_hints(body)

    def parse(self, path: str, body: bytes) -> CanonicalRequest:
        return self._parser.parse(self.name, body, count_only=_counts(path))

    def answer(self, request: CanonicalRequest, answer: CanonicalAnswer) -> bytes:
        return answer_body(answer, request.forms)

    def counted(self, prompt_tokens: int) -> bytes:
        return counted_body(prompt_tokens)

    def prologue(self, head: Head) -> bytes:
        return opening_events(head)

    def keep_alive(self, head: Head) -> bytes:
        return in_progress_event(head)

    def delta(self, head: Head, key: str, streamed: Streamed, *, reasoning: str = "", text: str = "") -> bytes:  # noqa: ARG002 (no event names it)
        return addition_events(key, streamed, reasoning, text)

    def events(self, request: CanonicalRequest, answer: CanonicalAnswer, streamed: Streamed = NOTHING) -> bytes:
        return answer_events(answer, streamed, request.forms)

    def error(self, error: RequestError) -> bytes:
        return error_body(error)

    def stream_error(self, head: Head, error: RequestError) -> bytes:
        return error_events(head, error)


def _place(path: str) -> str:
    return path.partition("?")[0].strip("/")


def _counts(path: str) -> bool:
    return _place(path).endswith(COUNTING)
