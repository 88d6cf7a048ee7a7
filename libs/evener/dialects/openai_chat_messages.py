"""Converts messages of OpenAI Chat Completions to the canonical form. Pure."""

from typing import Any, Final

from msgspec import Struct

from evener.dialects.canonical import Image
from evener.dialects.fields import as_arguments, as_items, as_name, as_object, as_string, malformed, refuse
from evener.dialects.images import image_at, image_part, images_within
from evener.dialects.wire import joined
from evener.tokens.digests import Message, message_digest

ROLES: Final = ("system", "developer", "user", "assistant", "tool")
WITH_IMAGES: Final = ("user", "tool")
TEXT_PARTS: Final = {"text": "text", "refusal": "refusal"}
"""Kinds of parts that are text, and the field that holds the text."""
UNSERVED_FIELDS: Final = {
    "function_call": "is not served; send tool_calls",
    "audio": "audio is not served",
    "prefix": "an answer cannot continue a given one",
}
"""Fields of an assistant message that would change its meaning."""


class Parsed(Struct, frozen=True):
    """A message, with derived values that are needed repeatedly."""

    message: Message
    digest: bytes
    images: tuple[Image, ...]
    name: str | None
    """The name of the speaker, which no template shows."""


def parse_message(value: Any, path: str) -> Parsed:
    """Return a canonical message. Raises RequestError."""
    images: dict[str, Image] = {}
    sent = as_object(value, path)
    message = _message(sent, path, images)
    name = None if sent.get("name") is None else as_string(sent["name"], f"{path}.name")
    return Parsed(message, message_digest(message), images_within(images.values(), path), name if message["role"] != "tool" else None)


def _message(sent: dict[str, Any], path: str, images: dict[str, Image]) -> Message:
    role = as_string(sent.get("role"), f"{path}.role")
    if role not in ROLES:
        malformed(f"{path}.role", f"{role!r} is not one of {', '.join(ROLES)}")
    message: Message = {"role": role, "content": _content(sent.get("content"), f"{path}.content", role, images)}
    if role == "assistant":
        _assistant(sent, message, path)
    if role == "tool":
        message["tool_call_id"] = as_name(sent.get("tool_call_id"), f"{path}.tool_call_id")
        if sent.get("name") is not None:
            message["name"] = as_name(sent["name"], f"{path}.name")
    return message


def _assistant(sent: dict[str, Any], message: Message, path: str) -> None:
    """Add the fields that only assistants have."""
    for name, why in UNSERVED_FIELDS.items():
        if sent.get(name):
            refuse(f"{path}.{name}", why)
    if not message["content"] and sent.get("refusal") is not None:
        message["content"] = as_string(sent["refusal"], f"{path}.refusal")
    for name in ("reasoning_content", "reasoning"):
        if sent.get(name) is not None and as_string(sent[name], f"{path}.{name}").strip():
            message["reasoning"] = sent[name]
            break
    if sent.get("tool_calls") is not None and (calls := as_items(sent["tool_calls"], f"{path}.tool_calls")):
        message["tool_calls"] = [_call(call, at) for call, at in calls]


def _call(value: Any, path: str) -> Message:
    call = as_object(value, path)
    if call.get("type", "function") != "function":
        refuse(f"{path}.type", "only function calls are served")
    function = as_object(call.get("function"), f"{path}.function")
    return {
        "id": as_name(call.get("id"), f"{path}.id"),
        "name": as_name(function.get("name"), f"{path}.function.name"),
        "arguments": as_arguments(function.get("arguments"), f"{path}.function.arguments"),
    }


def _content(value: Any, path: str, role: str, images: dict[str, Image]) -> str | list[Message]:
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list):
        malformed(path, "must be a string or a list of parts")
    return joined([_part(part, at, role, images) for part, at in as_items(value, path)])


def _part(value: Any, path: str, role: str, images: dict[str, Image]) -> Message:
    part = as_object(value, path)
    kind = as_string(part.get("type"), f"{path}.type")
    if kind in TEXT_PARTS:
        field = TEXT_PARTS[kind]
        return {"type": "text", "text": as_string(part.get(field), f"{path}.{field}")}
    if kind == "image_url" and role in WITH_IMAGES:
        image = image_at(as_object(part.get("image_url"), f"{path}.image_url").get("url"), f"{path}.image_url.url")
        images.setdefault(image.digest, image)
        return image_part(image)
    return refuse(f"{path}.type", f"{kind!r} parts are not served in {role} messages")
