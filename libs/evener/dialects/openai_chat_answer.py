"""Answers of OpenAI Chat Completions: whole bodies, streamed events, errors. Pure: equal arguments give equal bytes."""

import json
from typing import Any, Final

from evener.dialects.canonical import AnswerChoice, CanonicalAnswer, Message, RequestError, text_of
from evener.proto.sessions import FinishReason

DONE: Final = b"data: [DONE]\n\n"
FINISH: Final = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length", FinishReason.ABORTED: "length"}
"""An aborted answer is cut off, and this dialect has no other word for that."""
CODES: Final = {"context_length_exceeded": "invalid_request_error"}
"""Kinds of errors that OpenAI tells by `code`, and their `type`."""


def answer_body(answer: CanonicalAnswer) -> bytes:
    """Return the body of an answer that is not streamed."""
    choices = [
        {"index": index, "message": _message(choice.message), "logprobs": None, "finish_reason": _finish(choice)}
        for index, choice in enumerate(answer.choices)
    ]
    head = _head("chat.completion", answer.answer_id, answer.created, answer.model)
    return _json({**head, "choices": choices, "usage": _usage(answer)})


def opening_event(answer_id: str, created: int, model: str) -> bytes:
    """Return the chunk that opens the first choice."""
    return delta_event(answer_id, created, model, {"role": "assistant", "content": ""})


def delta_event(answer_id: str, created: int, model: str, delta: Message, *, index: int = 0, finish: str | None = None) -> bytes:
    """Return one chunk."""
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
    return _event({**_head("chat.completion.chunk", answer_id, created, model), "choices": [choice]})


def answer_events(answer: CanonicalAnswer, *, include_usage: bool) -> bytes:
    """Return all chunks after the opening one, and the end of the stream."""
    of = (answer.answer_id, answer.created, answer.model)
    events: list[bytes] = []
    for index, choice in enumerate(answer.choices):
        if index > 0:
            events.append(delta_event(*of, {"role": "assistant", "content": ""}, index=index))
        events += [delta_event(*of, delta, index=index) for delta in _deltas(choice.message)]
        events.append(delta_event(*of, {}, index=index, finish=_finish(choice)))
    if include_usage:
        events.append(_event({**_head("chat.completion.chunk", *of), "choices": [], "usage": _usage(answer)}))
    return b"".join(events) + DONE


def error_body(error: RequestError) -> bytes:
    """Return an error object."""
    kind = CODES.get(error.kind, error.kind)
    code = error.kind if error.kind in CODES else None
    return _json({"error": {"message": error.message, "type": kind, "param": error.field, "code": code}})


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


def _deltas(message: Message) -> list[Message]:
    """Return what a stream adds to a choice: reasoning, text, then each call at once."""
    deltas: list[Message] = []
    if "reasoning" in message:
        deltas.append({"reasoning_content": message["reasoning"]})
    if text := text_of(message):
        deltas.append({"content": text})
    for index, call in enumerate(message.get("tool_calls", ())):
        deltas.append({"tool_calls": [{"index": index, **_call(call)}]})
    return deltas


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
    return usage


def _head(kind: str, answer_id: str, created: int, model: str) -> dict[str, Any]:
    return {"id": answer_id, "object": kind, "created": created, "model": model}


def _event(value: Any) -> bytes:
    return b"data: " + _json(value) + b"\n\n"


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
