"""What several dialects share on the wire: JSON, events, arguments that are not JSON, answer keys. Pure."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from evener.tokens.digests import Message

UNPARSED: Final = "__unparsedToolInput"
"""The field for arguments that are not a JSON object, in formats that only allow objects.

Claude Code uses the same form for such arguments: `{"__unparsedToolInput": {"raw": text, "len": its length in UTF-16 units}}`.
"""
KEY_FORM: Final = re.compile(r"[A-Za-z0-9]{1,200}")
TOOL_ERROR: Final = "Error: "
"""The prefix of a tool result that its harness marks as an error: the policy sees only text."""
ERROR_CODES: Final = {"context_length_exceeded": "invalid_request_error"}
"""Kinds of errors that OpenAI expresses by `code`, and their `type`."""
_BREAKS: Final = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}
"""Characters that some clients take for the end of a line in their stream. They occur only in strings, where they may be escaped."""


def wire_json(value: Any) -> bytes:
    """Return compact JSON. Equal values with the same order of keys give equal bytes."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).translate(_BREAKS).encode()


def arguments_object(arguments: Mapping[str, Any] | str) -> Mapping[str, Any]:
    """Return canonical arguments as an object."""
    if isinstance(arguments, str):
        return {UNPARSED: {"raw": arguments, "len": _units(arguments)}}
    return arguments


def arguments_text(arguments: Any) -> str:
    """Return arguments as they were sampled if they are not a JSON object, otherwise as JSON."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def canonical_arguments(value: dict[str, Any]) -> dict[str, Any] | str:
    """Return the canonical arguments of an object: the original text if it wraps one that was not JSON and is complete."""
    held = value.get(UNPARSED)
    if len(value) == 1 and isinstance(held, dict) and isinstance(held.get("raw"), str):
        text: str = held["raw"]
        if held.get("len", _units(text)) == _units(text):
            return text
    return value


def our_key(text: Any) -> str | None:
    """Return the text if it can be an answer key, otherwise None."""
    return text if isinstance(text, str) and KEY_FORM.fullmatch(text) else None


def joined(parts: list[Message]) -> str | list[Message]:
    """Return parts as canonical content."""
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def failed(content: str | list[Message]) -> str | list[Message]:
    """Return the content of a tool result that is an error, marked in its text."""
    if isinstance(content, str):
        return TOOL_ERROR + content
    first = content[0]
    if first["type"] == "text":
        return [{"type": "text", "text": TOOL_ERROR + first["text"]}, *content[1:]]
    return [{"type": "text", "text": TOOL_ERROR.rstrip()}, *content]


def _units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
