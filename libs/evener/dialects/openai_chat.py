"""OpenAI Chat Completions. Format: the API reference of OpenAI, with `reasoning_content` as vLLM, DeepSeek and Qwen serve it."""

from typing import Final

from evener.dialects.canonical import CanonicalAnswer, CanonicalRequest, RequestError
from evener.dialects.openai_chat_answer import answer_body, answer_events, delta_event, error_body, opening_event, stream_error_event
from evener.dialects.openai_chat_request import parse_request

PATHS: Final = frozenset({"v1/chat/completions", "chat/completions"})


class OpenAIChat:
    """Implements `canonical.Dialect`."""

    name = "openai_chat"

    def serves(self, path: str) -> bool:
        return path.partition("?")[0].strip("/") in PATHS

    def parse(self, path: str, body: bytes) -> CanonicalRequest:  # noqa: ARG002 (other dialects name the model in the path)
        return parse_request(self.name, body)

    def answer(self, request: CanonicalRequest, answer: CanonicalAnswer) -> bytes:  # noqa: ARG002 (part of the port)
        return answer_body(answer)

    def prologue(self, answer_id: str, created: int, model: str) -> bytes:
        return opening_event(answer_id, created, model)

    def keep_alive(self, answer_id: str, created: int, model: str) -> bytes:
        return delta_event(answer_id, created, model, {})

    def events(self, request: CanonicalRequest, answer: CanonicalAnswer) -> bytes:
        return answer_events(answer, include_usage=request.include_usage)

    def error(self, error: RequestError) -> bytes:
        return error_body(error)

    def stream_error(self, error: RequestError) -> bytes:
        return stream_error_event(error)
