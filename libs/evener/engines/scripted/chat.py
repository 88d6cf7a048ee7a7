"""Renders messages to ids as vLLM does: the chat template's whole text is tokenised, including special tokens in messages."""

import json
from importlib.resources import files
from typing import Any, Final

from tokenizers import Tokenizer

from evener.engines.scripted.requests import Refusal
from evener.templates.jinja import ChatTemplate
from evener.templates.port import TemplateError

IMAGE: Final = "<image>"
"""The text that replaces an image, because the engine has no vision."""
TEMPLATE: Final = "chatml_tools.jinja"
"""The bundled template, used unless the engine is given another."""


class Chat:
    """A tokenizer and a chat template."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
        self._tokenizer: Final = tokenizer
        self._template: Final = template or ChatTemplate((files("evener.templates") / "bundled" / TEMPLATE).read_text(), {})

    def render(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> list[int]:
        """Return the ids of messages and tools in OpenAI's shape, generation prompt included. Raises Refusal."""
        try:
            shaped = [_shape(message) for message in messages]
            text = self._template.render(shaped, tools or None, open_turn=True)
        except (TemplateError, KeyError, TypeError, ValueError, AttributeError) as cause:
            raise Refusal(400, str(cause) or repr(cause)) from cause
        return self._tokenizer.encode(text, add_special_tokens=False).ids


def _shape(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message as templates expect it: content as text, arguments as objects, reasoning under both its names."""
    shaped = message | {"content": _text(message.get("content"))}
    if message.get("tool_calls"):
        shaped["tool_calls"] = [_shape_call(call) for call in message["tool_calls"]]
    reasoning = message.get("reasoning") or message.get("reasoning_content")
    return shaped | ({"reasoning": reasoning, "reasoning_content": reasoning} if reasoning else {})


def _shape_call(call: dict[str, Any]) -> dict[str, Any]:
    arguments = call["function"].get("arguments") or {}
    parsed = json.loads(arguments) if isinstance(arguments, str) else arguments
    return call | {"function": call["function"] | {"arguments": parsed}}


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(part["text"] if part["type"] == "text" else IMAGE for part in content)
    return content or ""
