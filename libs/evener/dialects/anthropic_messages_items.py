"""Converts messages of Anthropic's Messages API to the canonical form, each separately. Pure."""

from typing import Any, Final

from msgspec import Struct

from evener.dialects.canonical import Image
from evener.dialects.fields import as_flag, as_items, as_name, as_object, as_string, malformed, refuse
from evener.dialects.images import image_part, images_within, read_image
from evener.dialects.wire import canonical_arguments, failed, joined, our_key
from evener.tokens.digests import Message, message_digest

ROLES: Final = ("user", "assistant", "system")


class MessageItem(Struct, frozen=True, kw_only=True, eq=False):
    """The parsed form of one message on the wire."""

    messages: tuple[Message, ...]
    """The canonical messages: several if the message holds tool results, which come first, in their order."""
    digests: tuple[bytes, ...]
    """The digest of each message."""
    images: tuple[Image, ...] = ()
    references: frozenset[str] = frozenset()
    """The names of deferred tools that tool results refer to."""


class _Found:
    """The state that the parser collects on its way."""

    def __init__(self) -> None:
        self.images: dict[str, Image] = {}
        self.references: set[str] = set()


def parse_item(value: Any, path: str) -> MessageItem:
    """Parse a message. Raises RequestError."""
    sent, found = as_object(value, path), _Found()
    role = as_string(sent.get("role"), f"{path}.role")
    content, at = sent.get("content"), f"{path}.content"
    if role == "user":
        messages = _user(content, at, found)
    elif role == "assistant":
        messages = [_assistant(content, at)]
    elif role == "system":
        messages = [{"role": "system", "content": parse_text(content, at)}]
    else:
        malformed(f"{path}.role", f"{role!r} is not one of {', '.join(ROLES)}")
    return MessageItem(
        messages=tuple(messages),
        digests=tuple(message_digest(message) for message in messages),
        images=images_within(found.images.values(), path),
        references=frozenset(found.references),
    )


def parse_text(value: Any, path: str) -> str:
    """Return a string, or the text blocks of a list joined with newlines."""
    if isinstance(value, str):
        return value
    blocks = [(as_object(block, at), at) for block, at in as_items(value, path)]
    return "\n".join(_text(block, at) for block, at in blocks)


def _user(value: Any, path: str, found: _Found) -> list[Message]:
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    results: list[Message] = []
    parts: list[Message] = []
    for item, at in as_items(value, path):
        block = as_object(item, at)
        if block.get("type") == "tool_result":
            results.append(_result(block, at, found))
        else:
            parts.append(_part(block, at, found))
    return [*results, {"role": "user", "content": joined(parts)}] if parts or not results else results


def _result(block: Message, path: str, found: _Found) -> Message:
    content, at = block.get("content"), f"{path}.content"
    told: str | list[Message] = content or "" if content is None or isinstance(content, str) else _result_parts(content, at, found)
    if as_flag(block.get("is_error"), f"{path}.is_error"):
        told = failed(told)
    return {"role": "tool", "content": told, "tool_call_id": as_name(block.get("tool_use_id"), f"{path}.tool_use_id")}


def _result_parts(value: Any, path: str, found: _Found) -> str | list[Message]:
    parts: list[Message] = []
    for item, at in as_items(value, path):
        block = as_object(item, at)
        if block.get("type") == "tool_reference":
            name = as_name(block.get("tool_name"), f"{at}.tool_name")
            found.references.add(name)
            parts.append({"type": "text", "text": f"Tool found: {name}"})
        else:
            parts.append(_part(block, at, found))
    return joined(parts)


def _part(block: Message, path: str, found: _Found) -> Message:
    kind = as_string(block.get("type"), f"{path}.type")
    if kind == "image":
        source, at = as_object(block.get("source"), f"{path}.source"), f"{path}.source"
        if source.get("type") != "base64":
            refuse(f"{at}.type", "only base64 images are served, nothing is fetched")
        image = read_image(source.get("media_type"), source.get("data"), type_path=f"{at}.media_type", data_path=f"{at}.data")
        found.images.setdefault(image.digest, image)
        return image_part(image)
    return {"type": "text", "text": _text(block, path)}


def _text(block: Message, path: str) -> str:
    kind = as_string(block.get("type"), f"{path}.type")
    return as_string(block.get("text"), f"{path}.text") if kind == "text" else refuse(f"{path}.type", f"{kind!r} is not served here")


def _assistant(value: Any, path: str) -> Message:
    """Return an assistant message. A sampled answer comes back with the answer key in its thinking signature."""
    if isinstance(value, str):
        return {"role": "assistant", "content": value}
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Message] = []
    keys: list[str | None] = []
    for item, at in as_items(value, path):
        block = as_object(item, at)
        match as_string(block.get("type"), f"{at}.type"):
            case "thinking":
                thoughts.append(as_string(block.get("thinking"), f"{at}.thinking"))
                keys.append(our_key(block.get("signature")))
            case "tool_use":
                calls.append(_call(block, at))
            case "redacted_thinking":  # of another provider, sealed: nothing that a policy could read
                pass
            case _:
                texts.append(_text(block, at))
    reasoning, key = "\n".join(thoughts), next((key for key in keys if key), None)
    message: Message = {"role": "assistant", "content": "\n".join(texts)}
    message |= {"reasoning": reasoning} if reasoning.strip() else {}
    message |= {"tool_calls": calls} if calls else {}
    return message | ({"key": key} if key else {})


def _call(block: Message, path: str) -> Message:
    return {
        "id": as_name(block.get("id"), f"{path}.id"),
        "name": as_name(block.get("name"), f"{path}.name"),
        "arguments": canonical_arguments(as_object(block.get("input"), f"{path}.input")),
    }
