"""Renders answers of Anthropic's Messages API: whole bodies, streamed events, errors. Pure: equal arguments give equal bytes.

The content of an answer is, in this order: a `thinking` block if there is reasoning, with the answer key as its signature; a `text` block
if there is text; a `tool_use` block for each call.
"""

from http import HTTPStatus
from typing import Any, Final

from evener.dialects.canonical import (
    NOTHING,
    AnswerChoice,
    CanonicalAnswer,
    Head,
    Message,
    RequestError,
    Streamed,
    head_of,
    rest_of,
    text_of,
)
from evener.dialects.wire import arguments_object, wire_json
from evener.proto.sessions import FinishReason

STOP_REASON: Final = {FinishReason.STOP: "end_turn", FinishReason.LENGTH: "max_tokens", FinishReason.ABORTED: "max_tokens"}
"""The dialect's stop reasons. It has no reason of its own for an aborted answer."""
ERROR_TYPES: Final = frozenset(
    {"authentication_error", "invalid_request_error", "not_found_error", "overloaded_error", "rate_limit_error", "timeout_error"}
)


def answer_body(answer: CanonicalAnswer) -> bytes:
    """Return the body of an answer that is not streamed."""
    choice = answer.choices[0]
    usage = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, **_usage(answer)}
    ended = {"stop_reason": _stop_reason(choice), "stop_sequence": None, "usage": usage}
    return wire_json({**_head(head_of(answer)), "content": _blocks(choice), **ended})


def counted_body(prompt_tokens: int) -> bytes:
    """Return the answer to a request that only counts tokens."""
    return wire_json({"input_tokens": prompt_tokens})


def opening_event(head: Head) -> bytes:
    """Return the event that opens a message. The number of cached prompt tokens follows at the message's end."""
    usage = {"input_tokens": head.prompt_tokens, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 0}
    message = {**_head(head), "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    return _event("message_start", {"message": message})


def ping_event() -> bytes:
    """Return an event without content."""
    return _event("ping", {})


def addition_events(key: str, streamed: Streamed, reasoning: str, text: str) -> bytes:
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


def answer_events(answer: CanonicalAnswer, streamed: Streamed = NOTHING) -> bytes:
    """Return all events after the opening one and after what was streamed, including the end of the stream."""
    choice = answer.choices[0]
    left = rest_of(choice.message, streamed)
    events = [addition_events(choice.key, streamed, left.reasoning, left.text)]
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


def error_body(error: RequestError) -> bytes:
    """Return an error object."""
    told = _too_long(error) if error.kind == "context_length_exceeded" else error.message
    return wire_json({"type": "error", "error": {"type": _error_type(error), "message": told}})


def stream_error_event(error: RequestError) -> bytes:
    """Return an error as the last event of a stream."""
    return b"event: error\ndata: " + error_body(error) + b"\n\n"


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
