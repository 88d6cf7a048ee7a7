"""Canonical messages and tools in the shape that chat templates expect (that of the transformers library). Pure."""

from collections.abc import Sequence
from typing import Any

from evener.templates.port import Message, TemplateError


def shape_messages(messages: Sequence[Message], *, vision: bool) -> list[dict[str, Any]]:
    """Return the messages for a template. Raises TemplateError for an image without `vision`."""
    names = {call["id"]: call["name"] for message in messages for call in message.get("tool_calls", ())}
    return [_shape(message, names, vision=vision, place=f"messages[{index}]") for index, message in enumerate(messages)]


def shape_tools(tools: Sequence[Message] | None) -> list[dict[str, Any]] | None:
    """Return the tools for a template; none is None, as templates ask `if tools`."""
    return [{"type": "function", "function": tool} for tool in tools] if tools else None


def _shape(message: Message, names: dict[str, str], *, vision: bool, place: str) -> dict[str, Any]:
    role = message["role"]
    shaped: dict[str, Any] = {"role": "system" if role == "developer" else role, "content": message.get("content", "")}
    if not vision and not isinstance(shaped["content"], str):
        msg = f"{place}.content: an image, but the policy has no vision"
        raise TemplateError(msg)
    if "reasoning" in message:
        shaped["reasoning_content"] = message["reasoning"]
    if "tool_calls" in message:
        shaped["tool_calls"] = [_shape_call(call) for call in message["tool_calls"]]
    if role == "tool":
        shaped["tool_call_id"] = message["tool_call_id"]
        name = message.get("name") or names.get(message["tool_call_id"])
        if name is not None:
            shaped["name"] = name
    return shaped


def _shape_call(call: Message) -> dict[str, Any]:
    return {"type": "function", "id": call["id"], "function": {"name": call["name"], "arguments": call["arguments"]}}
