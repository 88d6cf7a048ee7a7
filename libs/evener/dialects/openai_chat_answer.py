"""Renders answers of OpenAI Chat Completions: whole bodies, streamed events, errors. Pure: equal arguments give equal bytes."""

import json
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
from evener.dialects.wire import wire_json
from evener.proto.sessions import FinishReason

DONE: Final = b"data: [DONE]\n\n"
FINISH: Final = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length", FinishReason.ABORTED: "length"}
"""The dialect's finish reasons. It has none of its own for an aborted answer."""
CODES: Final = {"context_length_exceeded": "invalid_request_error"}
"""Kinds of errors that OpenAI expresses by `code`, and their `type`."""


def answer_body(answer: CanonicalAnswer) -> bytes:
    """Return the body of an answer that is not streamed."""
    choices = [
        {"index": index, "message": _message(choice.message), "logprobs": None, "finish_reason": _finish(choice)}
        for index, choice in enumerate(answer.choices)
    ]
    return wire_json({**_head("chat.completion", head_of(answer)), "choices": choices, "usage": _usage(answer)})


def opening_event(head: Head) -> bytes:
    """Return the chunk that opens the first choice."""
    return delta_event(head, {"role": "assistant", "content": ""})


def delta_event(head: Head, delta: Message, *, index: int = 0, finish: str | None = None) -> bytes:
    """Return one chunk."""
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
    return _event({**_head("chat.completion.chunk", head), "choices": [choice]})


def addition_events(head: Head, reasoning: str, text: str, *, index: int = 0) -> bytes:
    """Return the chunks that add reasoning and text to a choice."""
    deltas = [{name: added} for name, added in (("reasoning_content", reasoning), ("content", text)) if added]
    return b"".join(delta_event(head, delta, index=index) for delta in deltas)


def answer_events(answer: CanonicalAnswer, streamed: Streamed, *, include_usage: bool) -> bytes:
    """Return all chunks after the opening one and after what was streamed, including the end of the stream."""
    head = head_of(answer)
    events: list[bytes] = []
    for index, choice in enumerate(answer.choices):
        if index > 0:
            events.append(delta_event(head, {"role": "assistant", "content": ""}, index=index))
        left = rest_of(choice.message, streamed if index == 0 else NOTHING)
        events.append(addition_events(head, left.reasoning, left.text, index=index))
        for number, call in enumerate(choice.message.get("tool_calls", ())):
            events.append(delta_event(head, {"tool_calls": [{"index": number, **_call(call)}]}, index=index))
        events.append(delta_event(head, {}, index=index, finish=_finish(choice)))
    if include_usage:
        events.append(_event({**_head("chat.completion.chunk", head), "choices": [], "usage": _usage(answer)}))
    return b"".join(events) + DONE


def error_body(error: RequestError) -> bytes:
    """Return an error object."""
    kind = CODES.get(error.kind, error.kind)
    code = error.kind if error.kind in CODES else None
    return wire_json({"error": {"message": error.message, "type": kind, "param": error.field, "code": code}})


def stream_error_event(error: RequestError) -> bytes:
    """Return an error as the last event of a stream."""
    return b"data: " + error_body(error) + b"\n\n"


def _message(message: Message) -> Message:
    calls = message.get("tool_calls", ())
    body: Message = {"role": "assistant", "content": text_of(message) or (None if calls else ""), "refusal": None}
    if "reasoning" in message:
        body["reasoning_content"] = message["reasoning"]
    if calls:
        body["tool_calls"] = [_call(call) for call in calls]
    return body


def _call(call: Message) -> Message:
    arguments = call["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": text}}


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
