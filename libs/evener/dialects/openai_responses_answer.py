"""Renders answers of OpenAI Responses: its items, the response around them, errors. Pure.

An answer is a list of items: reasoning as a summary, the text as a message, and one item for each call. `openai_responses_stream` renders
the same items as events.
"""

from collections.abc import Mapping
from typing import Any, Final

from evener.dialects.canonical import CanonicalAnswer, Head, RequestError, ToolForm, head_of, text_of
from evener.dialects.openai_responses_items import JSON_MARK, item_id, wire_call_id
from evener.dialects.openai_responses_tools import INPUT
from evener.dialects.wire import ERROR_CODES, arguments_text
from evener.proto.sessions import FinishReason
from evener.tokens.digests import Message

ARGUMENTS: Final = {"function_call": "arguments", "custom_tool_call": INPUT}
"""Kinds of calls whose arguments are text, and the field that holds the text."""

Forms = Mapping[str, ToolForm]


def error_fields(error: RequestError, code: str | None) -> Message:
    """Return the fields of an error."""
    return {"message": error.message, "type": ERROR_CODES.get(error.kind, error.kind), "param": error.field, "code": code}


def output_items(answer: CanonicalAnswer, forms: Forms) -> list[Message]:
    """Return the items of an answer in their order. An answer without text or calls gets an empty message."""
    [choice] = answer.choices
    calls = choice.message.get("tool_calls", ())
    text = text_of(choice.message)
    items: list[Message] = []
    if choice.message.get("reasoning"):
        items.append(reasoning_item(choice.key, choice.message["reasoning"]))
    if text or not calls:
        whole = choice.finish_reason is FinishReason.STOP or calls
        items.append(message_item(choice.key, len(items), text, status="completed" if whole else "incomplete"))
    for call in calls:
        items.append(call_item(choice.key, len(items), call, forms))
    return items


def reasoning_item(key: str, text: str) -> Message:
    """Return the reasoning of an answer, which is always the first item."""
    summary = [{"type": "summary_text", "text": text}] if text else []
    return {"id": item_id("rs", key, 0), "type": "reasoning", "summary": summary, "encrypted_content": key}


def message_item(key: str, index: int, text: str, *, status: str) -> Message:
    """Return the text of an answer."""
    return {
        "id": item_id("msg", key, index),
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": [] if status == "in_progress" else [text_part(text)],
    }


def text_part(text: str) -> Message:
    """Return the only part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def call_item(key: str, index: int, call: Message, forms: Forms) -> Message:
    """Return a tool call in the form in which the harness declared the tool."""
    form = forms.get(call["name"], ToolForm(name=call["name"]))
    arguments = call["arguments"]
    common: Message = {"status": "completed", "call_id": wire_call_id(call["id"])}
    if form.search:
        given = {"execution": "client", "arguments": arguments}
        return {"id": item_id("tsc", key, index), "type": "tool_search_call"} | common | given
    common["name"] = form.name
    if form.namespace is not None:
        common["namespace"] = form.namespace
    if not form.freeform:
        return {"id": item_id("fc", key, index), "type": "function_call"} | common | {"arguments": arguments_text(arguments)}
    is_text = isinstance(arguments, dict) and arguments.keys() == {INPUT} and isinstance(arguments[INPUT], str)
    text = arguments[INPUT] if is_text else arguments_text(arguments)
    identity = item_id("ctc", key, index, "" if is_text else JSON_MARK)
    return {"id": identity, "type": "custom_tool_call"} | common | {INPUT: text}


def open_response(head: Head) -> Message:
    """Return a response before its content is known. It does not repeat what the harness sent."""
    return {
        "id": f"resp_{head.answer_id}",
        "object": "response",
        "created_at": head.created,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "model": head.model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "truncation": "disabled",
        "usage": None,
        "metadata": {},
    }


def ended_response(answer: CanonicalAnswer, items: list[Message]) -> Message:
    """Return a response that is complete or incomplete: the format does not distinguish a limit from an abort."""
    cut = answer.choices[0].finish_reason is not FinishReason.STOP
    return open_response(head_of(answer)) | {
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": items,
        "usage": _usage(answer),
    }


def _usage(answer: CanonicalAnswer) -> dict[str, Any]:
    """Return the token counts. This format requires a number, so what the engine did not report is 0."""
    return {
        "input_tokens": answer.prompt_tokens,
        "input_tokens_details": {"cached_tokens": answer.cached_tokens or 0},
        "output_tokens": answer.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": answer.reasoning_tokens},
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
    }
