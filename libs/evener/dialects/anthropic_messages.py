"""Anthropic Messages. Format: the API reference of Anthropic, version 2023-06-01, and its betas as Claude Code uses them.

The content of an answer is, in this order: a `thinking` block if there is reasoning, with the answer key as its signature; a `text` block
if there is text; a `tool_use` block for each call.
"""

from http import HTTPStatus
from typing import Any, Final

from evener.dialects.anthropic_messages_request import parse_request
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
from evener.dialects.wire import arguments_object, wire_json
from evener.proto.sessions import FinishReason
from evener.tokens.digests import Message

PATHS: Final = frozenset({"v1/messages", "messages"})
COUNTING_PATHS: Final = frozenset(f"{path}/count_tokens" for path in PATHS)
STOP_REASON: Final = {FinishReason.STOP: "end_turn", FinishReason.LENGTH: "max_tokens", FinishReason.ABORTED: "max_tokens"}
"""The dialect's stop reasons. It has no reason of its own for an aborted answer."""
ERROR_TYPES: Final = frozenset(
    {"authentication_error", "invalid_request_error", "not_found_error", "overloaded_error", "rate_limit_error", "timeout_error"}
)


class AnthropicMessages:
    """Implements `canonical.Dialect`. The answer key is the signature of the thinking block. An answer has one choice."""

    name = "anthropic_messages"
    history = "messages"
    endpoint = "/v1/messages"
    key_header = "x-api-key"

    def serves(self, path: str) -> bool:
        return _plain(path) in PATHS | COUNTING_PATHS

    def hints(self, path: str, body: bytes) -> RequestHints:
        hints = read_hints(body)
        return RequestHints(model=hints.model) if _plain(path) in COUNTING_PATHS else hints

    def parse(self, path: str, body: bytes) -> CanonicalRequest:
        return parse_request(self.name, body, count_only=_plain(path) in COUNTING_PATHS)

    def answer(self, request: CanonicalRequest, answer: CanonicalAnswer) -> bytes:  # noqa: ARG002 (part of the port)
        choice = answer.choices[0]
        usage = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, **_usage(answer)}
        ended = {"stop_reason": _stop_reason(choice), "stop_sequence": None, "usage": usage}
        return wire_json({**_head(head_of(answer)), "content": _blocks(choice), **ended})

    def counted(self, prompt_tokens: int) -> bytes:
        return wire_json({"input_tokens": prompt_tokens})

    def prologue(self, head: Head) -> bytes:
        """Return the event that opens a message. The number of cached prompt tokens follows at the message's end."""
        usage = {"input_tokens": head.prompt_tokens, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 0}
        message = {**_head(head), "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        return _event("message_start", {"message": message})

    def keep_alive(self, head: Head) -> bytes:  # noqa: ARG002 (part of the port)
        return _event("ping", {})

    def delta(self, head: Head, key: str, streamed: Streamed, *, reasoning: str = "", text: str = "") -> bytes:  # noqa: ARG002 (said before)
        return _additions(key, streamed, reasoning, text)

    def events(self, request: CanonicalRequest, answer: CanonicalAnswer, streamed: Streamed = NOTHING_STREAMED) -> bytes:  # noqa: ARG002 (part of the port)
        choice = answer.choices[0]
        left = rest_of(choice.message, streamed)
        events = [_additions(choice.key, streamed, left.reasoning, left.text)]
        thought, spoke = bool(streamed.reasoning or left.reasoning), bool(streamed.text or left.text)
        if spoke:
            events.append(_stop(int(thought)))
        elif thought:
            events.append(_end_of_thinking(choice.key))
        for index, call in enumerate(choice.message.get("tool_calls", ()), start=thought + spoke):
            block = _call(call)
            events.append(_start(index, {**block, "input": {}}))
            events.append(_delta(index, {"type": "input_json_delta", "partial_json": wire_json(block["input"]).decode()}))
            events.append(_stop(index))
        ended = {"delta": {"stop_reason": _stop_reason(choice), "stop_sequence": None}, "usage": _usage(answer)}
        return b"".join(events) + _event("message_delta", ended) + _event("message_stop", {})

    def error(self, error: RequestError) -> bytes:
        told = _too_long(error) if error.kind == "context_length_exceeded" else error.message
        return wire_json({"type": "error", "error": {"type": _error_type(error), "message": told}})

    def stream_error(self, head: Head, error: RequestError) -> bytes:  # noqa: ARG002 (an error of this dialect names no answer)
        return b"event: error\ndata: " + self.error(error) + b"\n\n"


def _plain(path: str) -> str:
    return path.partition("?")[0].strip("/")


def _additions(key: str, streamed: Streamed, reasoning: str, text: str) -> bytes:
    """Return the events that add reasoning, then text, to what was streamed. The last block stays open."""
    events: list[bytes] = []
    if reasoning:
        if not streamed.reasoning:
            events.append(_start(0, {"type": "thinking", "thinking": "", "signature": ""}))
        events.append(_delta(0, {"type": "thinking_delta", "thinking": reasoning}))
    if text:
        thought = bool(streamed.reasoning or reasoning)
        if not streamed.text:
            events.append(_end_of_thinking(key) if thought else b"")
            events.append(_start(int(thought), {"type": "text", "text": ""}))
        events.append(_delta(int(thought), {"type": "text_delta", "text": text}))
    return b"".join(events)


def _blocks(choice: AnswerChoice) -> list[Message]:
    message = choice.message
    blocks: list[Message] = []
    if reasoning := message.get("reasoning"):
        blocks.append({"type": "thinking", "thinking": reasoning, "signature": choice.key})
    if text := text_of(message):
        blocks.append({"type": "text", "text": text})
    return blocks + [_call(call) for call in message.get("tool_calls", ())]


def _call(call: Message) -> Message:
    return {"type": "tool_use", "id": call["id"], "name": call["name"], "input": arguments_object(call["arguments"])}


def _stop_reason(choice: AnswerChoice) -> str:
    if choice.finish_reason is FinishReason.STOP and choice.message.get("tool_calls"):
        return "tool_use"
    return STOP_REASON[choice.finish_reason]


def _usage(answer: CanonicalAnswer) -> dict[str, int]:
    """Return the token counts. The prompt's tokens are split into cached and others if the engine reported it."""
    cached = min(answer.cached_tokens or 0, answer.prompt_tokens)
    usage = {"input_tokens": answer.prompt_tokens - cached, "output_tokens": answer.completion_tokens}
    return usage if answer.cached_tokens is None else {**usage, "cache_read_input_tokens": cached}


def _error_type(error: RequestError) -> str:
    if error.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return "request_too_large"
    if error.kind in ERROR_TYPES:
        return error.kind
    return "api_error" if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR or error.kind == "api_error" else "invalid_request_error"


def _too_long(error: RequestError) -> str:
    """Return the message by which clients recognise that the context is full."""
    numbers = error.overflow
    return f"prompt is too long: {numbers.asked} tokens > {numbers.limit} maximum" if numbers else f"prompt is too long: {error.message}"


def _head(head: Head) -> dict[str, Any]:
    return {"id": f"msg_{head.answer_id}", "type": "message", "role": "assistant", "model": head.model}


def _start(index: int, block: Message) -> bytes:
    return _event("content_block_start", {"index": index, "content_block": block})


def _delta(index: int, delta: Message) -> bytes:
    return _event("content_block_delta", {"index": index, "delta": delta})


def _stop(index: int) -> bytes:
    return _event("content_block_stop", {"index": index})


def _end_of_thinking(key: str) -> bytes:
    return _delta(0, {"type": "signature_delta", "signature": key}) + _stop(0)


def _event(name: str, fields: dict[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + wire_json({"type": name, **fields}) + b"\n\n"
