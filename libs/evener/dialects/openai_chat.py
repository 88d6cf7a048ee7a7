"""OpenAI Chat Completions. Format: the API reference of OpenAI, with `reasoning_content` as vLLM, DeepSeek and Qwen serve it."""

from typing import Any, Final

from evener.dialects.canonical import (
    NOTHING_STREAMED,
    AnswerChoice,
    CanonicalAnswer,
    CanonicalRequest,
    Head,
    RequestError,
    RequestHints,
    Streamed,
    head_of,
    rest_of,
    text_of,
)
from evener.dialects.fields import read_hints
from evener.dialects.openai_chat_request import parse_request
from evener.dialects.wire import ERROR_CODES, arguments_text, wire_json
from evener.proto.sessions import FinishReason
from evener.tokens.digests import Message

PATHS: Final = frozenset({"v1/chat/completions", "chat/completions"})
OPENING_DELTA: Final[Message] = {"role": "assistant", "content": ""}
"""The delta that opens a choice."""
DONE: Final = b"data: [DONE]\n\n"
FINISH: Final = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length", FinishReason.ABORTED: "length"}
"""The dialect's finish reasons. It has none of its own for an aborted answer."""


class OpenAIChat:
    """Implements `canonical.Dialect`. It has no place for an answer key: answers are recognised by call ids and content."""

    name = "openai_chat"
    history = "messages"
    endpoint = "/v1/chat/completions"
    key_header = "authorization"

    def serves(self, path: str) -> bool:
        return path.partition("?")[0].strip("/") in PATHS

    def hints(self, path: str, body: bytes) -> RequestHints:  # noqa: ARG002 (other dialects say it in the path)
        return read_hints(body)

    def parse(self, path: str, body: bytes) -> CanonicalRequest:  # noqa: ARG002 (other dialects name the model in the path)
        return parse_request(self.name, body)

    def answer(self, request: CanonicalRequest, answer: CanonicalAnswer) -> bytes:  # noqa: ARG002 (part of the port)
        choices = [
            {"index": index, "message": _message(choice.message), "logprobs": None, "finish_reason": _finish(choice)}
            for index, choice in enumerate(answer.choices)
        ]
        return wire_json({**_head("chat.completion", head_of(answer)), "choices": choices, "usage": _usage(answer)})

    def counted(self, prompt_tokens: int) -> bytes:  # noqa: ARG002 (part of the port)
        msg = "Chat Completions has no request that only counts"
        raise RequestError(msg, status=404, kind="not_found_error")

    def prologue(self, head: Head) -> bytes:
        """Return the chunk that opens the first choice."""
        return _chunk(head, OPENING_DELTA)

    def keep_alive(self, head: Head) -> bytes:
        return _chunk(head, {})

    def delta(self, head: Head, key: str, streamed: Streamed, *, reasoning: str = "", text: str = "") -> bytes:  # noqa: ARG002 (stateless)
        return _additions(head, reasoning, text)

    def events(self, request: CanonicalRequest, answer: CanonicalAnswer, streamed: Streamed = NOTHING_STREAMED) -> bytes:
        head = head_of(answer)
        events: list[bytes] = []
        for index, choice in enumerate(answer.choices):
            if index > 0:
                events.append(_chunk(head, OPENING_DELTA, index=index))
            left = rest_of(choice.message, streamed if index == 0 else NOTHING_STREAMED)
            events.append(_additions(head, left.reasoning, left.text, index=index))
            for number, call in enumerate(choice.message.get("tool_calls", ())):
                events.append(_chunk(head, {"tool_calls": [{"index": number, **_call(call)}]}, index=index))
            events.append(_chunk(head, {}, index=index, finish=_finish(choice)))
        if request.include_usage:
            events.append(_event({**_head("chat.completion.chunk", head), "choices": [], "usage": _usage(answer)}))
        return b"".join(events) + DONE

    def error(self, error: RequestError) -> bytes:
        kind = ERROR_CODES.get(error.kind, error.kind)
        code = error.kind if error.kind in ERROR_CODES else None
        return wire_json({"error": {"message": error.message, "type": kind, "param": error.field, "code": code}})

    def stream_error(self, head: Head, error: RequestError) -> bytes:  # noqa: ARG002 (an error of this dialect names no answer)
        return b"data: " + self.error(error) + b"\n\n"


def _chunk(head: Head, delta: Message, *, index: int = 0, finish: str | None = None) -> bytes:
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
    return _event({**_head("chat.completion.chunk", head), "choices": [choice]})


def _additions(head: Head, reasoning: str, text: str, *, index: int = 0) -> bytes:
    """Return the chunks that add reasoning and text to a choice."""
    deltas = [{name: added} for name, added in (("reasoning_content", reasoning), ("content", text)) if added]
    return b"".join(_chunk(head, delta, index=index) for delta in deltas)


def _message(message: Message) -> Message:
    calls = message.get("tool_calls", ())
    body: Message = {"role": "assistant", "content": text_of(message) or (None if calls else ""), "refusal": None}
    if "reasoning" in message:
        body["reasoning_content"] = message["reasoning"]
    if calls:
        body["tool_calls"] = [_call(call) for call in calls]
    return body


def _call(call: Message) -> Message:
    return {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": arguments_text(call["arguments"])}}


def _finish(choice: AnswerChoice) -> str:
    if choice.finish_reason is FinishReason.STOP and choice.message.get("tool_calls"):
        return "tool_calls"
    return FINISH[choice.finish_reason]


def _usage(answer: CanonicalAnswer) -> dict[str, Any]:
    usage: dict[str, Any] = {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
    }
    if answer.cached_tokens is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": answer.cached_tokens}
    if answer.reasoning_tokens:
        usage["completion_tokens_details"] = {"reasoning_tokens": answer.reasoning_tokens}
    return usage


def _head(kind: str, head: Head) -> dict[str, Any]:
    return {"id": f"chatcmpl-{head.answer_id}", "object": kind, "created": head.created, "model": head.model}


def _event(value: Any) -> bytes:
    return b"data: " + wire_json(value) + b"\n\n"
