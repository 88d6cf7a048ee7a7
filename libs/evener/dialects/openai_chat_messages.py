"""Messages of OpenAI Chat Completions to the canonical form. Pure."""

import base64
import binascii
import hashlib
import re
from typing import Any, Final

from evener.dialects.canonical import Image, Message
from evener.dialects.fields import as_list, as_name, as_object, as_string, read_json, refuse

DATA_URL: Final = re.compile(r"data:(image/[a-z0-9.+-]+);base64,(.*)", re.DOTALL)
ROLES: Final = ("system", "developer", "user", "assistant", "tool")
WITH_IMAGES: Final = ("user", "tool")
TEXT_PARTS: Final = {"text": "text", "refusal": "refusal"}
"""Kinds of parts that are text, and the field that holds it."""


def parse_messages(value: Any) -> tuple[list[Message], tuple[Image, ...]]:
    """Return the canonical messages and the images in them. Raises RequestError."""
    images: dict[str, Image] = {}
    items = as_list(value, "messages") or refuse("messages", "must not be empty")
    return [_message(item, f"messages[{index}]", images) for index, item in enumerate(items)], tuple(images.values())


def _message(value: Any, path: str, images: dict[str, Image]) -> Message:
    sent = as_object(value, path)
    role = as_string(sent.get("role"), f"{path}.role")
    if role not in ROLES:
        refuse(f"{path}.role", f"{role!r} is none of {', '.join(ROLES)}")
    message: Message = {"role": role, "content": _content(sent.get("content"), f"{path}.content", role, images)}
    if role == "assistant":
        _assistant(sent, message, path)
    if role == "tool":
        message["tool_call_id"] = as_name(sent.get("tool_call_id"), f"{path}.tool_call_id")
        if sent.get("name") is not None:
            message["name"] = as_name(sent["name"], f"{path}.name")
    return message


def _assistant(sent: dict[str, Any], message: Message, path: str) -> None:
    """Add what only assistants have."""
    for name in ("function_call", "audio"):
        if sent.get(name):
            refuse(f"{path}.{name}", "is not served")
    if not message["content"] and sent.get("refusal") is not None:
        message["content"] = as_string(sent["refusal"], f"{path}.refusal")
    for name in ("reasoning_content", "reasoning"):
        if sent.get(name) is not None and as_string(sent[name], f"{path}.{name}").strip():
            message["reasoning"] = sent[name]
            break
    calls = [] if sent.get("tool_calls") is None else as_list(sent["tool_calls"], f"{path}.tool_calls")
    if calls:
        message["tool_calls"] = [_call(call, f"{path}.tool_calls[{index}]") for index, call in enumerate(calls)]


def _call(value: Any, path: str) -> Message:
    call = as_object(value, path)
    if call.get("type", "function") != "function":
        refuse(f"{path}.type", "only function calls are served")
    function = as_object(call.get("function"), f"{path}.function")
    return {
        "id": as_name(call.get("id"), f"{path}.id"),
        "name": as_name(function.get("name"), f"{path}.function.name"),
        "arguments": _arguments(function.get("arguments"), f"{path}.function.arguments"),
    }


def _arguments(value: Any, path: str) -> dict[str, Any] | str:
    """Return the parsed object, or the text where it is none."""
    if isinstance(value, dict):
        return value
    text = as_string(value, path)
    try:
        parsed = read_json(text)
    except ValueError:
        return text
    return parsed if isinstance(parsed, dict) else text


def _content(value: Any, path: str, role: str, images: dict[str, Image]) -> str | list[Message]:
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list):
        refuse(path, "must be a string or a list of parts")
    parts = [_part(part, f"{path}[{index}]", role, images) for index, part in enumerate(value)]
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _part(value: Any, path: str, role: str, images: dict[str, Image]) -> Message:
    part = as_object(value, path)
    kind = as_string(part.get("type"), f"{path}.type")
    if kind in TEXT_PARTS:
        field = TEXT_PARTS[kind]
        return {"type": "text", "text": as_string(part.get(field), f"{path}.{field}")}
    if kind == "image_url" and role in WITH_IMAGES:
        image = _image(part.get("image_url"), f"{path}.image_url")
        images.setdefault(image.digest, image)
        return {"type": "image", "digest": image.digest, "media_type": image.media_type}
    return refuse(f"{path}.type", f"{kind!r} parts are not served in {role} messages")


def _image(value: Any, path: str) -> Image:
    url = as_string(as_object(value, path).get("url"), f"{path}.url")
    found = DATA_URL.fullmatch(url) or refuse(f"{path}.url", "only data URLs with base64 images are served, nothing is fetched")
    try:
        data = base64.b64decode(found[2], validate=True)
    except (binascii.Error, ValueError):
        refuse(f"{path}.url", "is not valid base64")
    return Image(digest=hashlib.sha256(data).hexdigest(), media_type=found[1], data=data)
