"""OpenAI Chat Completions. Format: the API reference of OpenAI, with `reasoning_content` as vLLM, DeepSeek and Qwen serve it."""

from typing import Final

from evener.dialects.canonical import NOTHING, CanonicalAnswer, CanonicalRequest, Head, RequestError, RequestHints, Streamed
from evener.dialects.fields import read_hints
from evener.dialects.openai_chat_answer import (
    addition_events,
    answer_body,
    answer_events,
    delta_event,
    error_body,
    opening_event,
    stream_error_event,
)
from evener.dialects.openai_chat_request import parse_request

PATHS: Final = frozenset({"v1/chat/completions", "chat/completions"})


class OpenAIChat:
    """Implements `canonical.Dialect`. It has no place for an answer key: answers are recognised by call ids and content."""

    name = "openai_chat"
    history = "messages"

    def serves(self, path: str) -> bool:
        return path.partition("?")[0].strip("/") in PATHS

    def hints(self, path: str, body: bytes) -> RequestHints:  # noqa: ARG002 (other dialects say it in the path)
        return read_hints(body)

    def parse(self, path: str, body: bytes) -> CanonicalRequest:  # noqa: ARG002 (other dialects name the model in the path)
        return parse_request(self.name, body)

    def answer(self, request: CanonicalRequest, answer: CanonicalAnswer) -> bytes:  # noqa: ARG002 (part of the port)
        return answer_body(answer)

    def counted(self, prompt_tokens: int) -> bytes:  # noqa: ARG002 (part of the port)
        msg = "Chat Completions has no request that only counts"
        raise RequestError(msg, status=404, kind="not_found_error")

    def prologue(self, head: Head) -> bytes:
        return opening_event(head)

    def keep_alive(self, head: Head) -> bytes:
        return delta_event(head, {})

    def delta(self, head: Head, key: str, streamed: Streamed, *, reasoning: str = "", text: str = "") -> bytes:  # noqa: ARG002 (stateless)
        return addition_events(head, reasoning, text)

    def events(self, request: CanonicalRequest, answer: CanonicalAnswer, streamed: Streamed = NOTHING) -> bytes:
        return answer_events(answer, streamed, include_usage=request.include_usage)

    def error(self, error: RequestError) -> bytes:
        return error_body(error)

    def stream_error(self, head: Head, error: RequestError) -> bytes:  # noqa: ARG002 (an error of this dialect names no answer)
        return stream_error_event(error)
