"""Converts canonical messages and tools to the shape that a chat template expects (that of transformers, with variants). Pure."""

import json
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from evener.templates.port import TemplateError
from evener.tokens.digests import Message


class Shape(Struct, frozen=True, kw_only=True):
    """The form of messages that one template expects."""

    vision: bool = False
    """Whether images are passed on. If not, they are refused."""
    text_arguments: bool = False
    """Whether arguments of tool calls are JSON text, because the template concatenates them with strings (DeepSeek V3)."""
    thinking_field: bool = False
    """Whether reasoning goes into the field `thinking`, and never beside a text in a message with tool calls (gpt-oss)."""

    def messages(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Return the messages for the template. Raises TemplateError for an image without `vision`."""
        names = {call["id"]: call["name"] for message in messages for call in message.get("tool_calls", ())}
        return [self._message(message, names, path=f"messages[{index}]") for index, message in enumerate(messages)]

    def _message(self, message: Message, names: dict[str, str], *, path: str) -> dict[str, Any]:
        role = message["role"]
        shaped: dict[str, Any] = {"role": "system" if role == "developer" else role, "content": message.get("content", "")}
        if not self.vision and not isinstance(shaped["content"], str):
            msg = f"{path}.content: an image, but the policy has no vision"
            raise TemplateError(msg)
        if "reasoning" in message:
            shaped["thinking" if self.thinking_field else "reasoning_content"] = message["reasoning"]
        if "tool_calls" in message:
            shaped["tool_calls"] = [self._call(call) for call in message["tool_calls"]]
            if self.thinking_field and message.get("reasoning") and shaped["content"]:
                shaped["thinking"], shaped["content"] = f"{message['reasoning']}\n{shaped['content']}", ""
        if role == "tool":
            shaped["tool_call_id"] = message["tool_call_id"]
            name = message.get("name") or names.get(message["tool_call_id"])
            if name is not None:
                shaped["name"] = name
        return shaped

    def _call(self, call: Message) -> dict[str, Any]:
        arguments = call["arguments"]
        if self.text_arguments and not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        return {"type": "function", "id": call["id"], "function": {"name": call["name"], "arguments": arguments}}


def shape_tools(tools: Sequence[Message] | None) -> list[dict[str, Any]] | None:
    """Return the tools for a template, None if there are none: templates test `if tools`."""
    return [{"type": "function", "function": tool} for tool in tools] if tools else None
