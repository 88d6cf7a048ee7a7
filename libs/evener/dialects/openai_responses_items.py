"""Converts input items of OpenAI Responses to canonical messages. Pure.

Each item is parsed separately, so that it can be cached (`evener.dialects.items`); then the items of one turn become one message. The
answer key is part of the ids of all items that Evener creates, `PREFIX_KEY_INDEX`, and of `encrypted_content`.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from evener.dialects.canonical import Image
from evener.dialects.fields import as_arguments, as_items, as_list, as_name, as_object, as_string, malformed, refuse
from evener.dialects.images import image_at, image_part, images_within
from evener.dialects.openai_responses_tools import EMPTY_TOOLSET, INPUT, SEARCH, Toolset, flat_name, parse_tools, tools_text
from evener.dialects.wire import joined, our_key
from evener.tokens.digests import Message, message_digest

ROLES: Final = ("system", "developer", "user", "assistant")
TEXT_PARTS: Final = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
"""Kinds of parts that are text, and the field that holds the text."""
JSON_MARK: Final = "j"
"""In the id of a freeform call: its text is the JSON of arguments that were not a single text."""

_OUR_ID: Final = re.compile(rf"[a-z]+_([A-Za-z0-9]+)_[0-9]+({JSON_MARK}?)")


class ItemPart(Struct, frozen=True, kw_only=True, eq=False):
    """What one item adds to a request."""

    message: Message | None = None
    """A whole message, or an assistant's part of a turn."""
    digest: bytes | None = None
    """The digest of a whole message."""
    images: tuple[Image, ...] = ()
    tools: Toolset = EMPTY_TOOLSET
    opens: bool = False
    """Whether the item, if it comes before the first assistant turn, declares tools of the request and is not a message."""


def item_id(prefix: str, key: str, index: int, mark: str = "") -> str:
    """Return the id of an item in an answer."""
    return f"{prefix}_{key}_{index}{mark}"


def parse_item(value: Any, path: str) -> ItemPart:
    """Parse an item. Raises RequestError."""
    item = as_object(value, path)
    kind = as_string(item.get("type") or ("message" if "role" in item else "item_reference"), f"{path}.type")
    if kind == "item_reference":
        refuse(path, "items are not stored for references; send the item itself (store: false)")
    parse = PARSERS.get(kind) or refuse(f"{path}.type", f"{kind!r} items are not served")
    piece = parse(item, path)
    return replace(piece, images=images_within(piece.images, path)) if piece.images else piece


def whole(role: str, content: str | list[Message], images: tuple[Image, ...] = (), **more: Any) -> ItemPart:
    """Return a message to which no other item adds."""
    message = {"role": role, "content": content, **more}
    return ItemPart(message=message, digest=message_digest(message), images=images)


def assembled(pieces: Iterable[ItemPart]) -> tuple[list[tuple[Message, bytes]], list[Toolset]]:
    """Return the canonical messages with their digests, and the tools declared before the first answer."""
    said: list[tuple[Message, bytes] | _Turn] = []
    opening: list[Toolset] = []
    turn: _Turn | None = None
    """The last answer, as long as only tool results have followed it."""
    answered = False
    for piece in pieces:
        if (message := piece.message) is None:
            continue
        if piece.opens and not answered:
            opening.append(piece.tools)
        elif message["role"] != "assistant":
            turn = turn if message["role"] == "tool" else None
            said.append((message, piece.digest or message_digest(message)))
        elif turn is not None and turn.takes(message, adjacent=said[-1] is turn):
            turn.add(message)
        else:
            answered, turn = True, _Turn(message)
            said.append(turn)
    return [one.digested() if isinstance(one, _Turn) else one for one in said], opening


class _Turn:
    """An answer whose parts are being collected."""

    def __init__(self, first: Message) -> None:
        self._key: str | None = None
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[Message] = []
        self.add(first)

    def takes(self, part: Message, *, adjacent: bool) -> bool:
        """Return whether a part belongs to this turn: by the answer key, otherwise by its place. Reasoning begins a new turn."""
        theirs = part.get("key")
        if self._key and theirs:
            return bool(self._key == theirs)
        return adjacent and not ("reasoning" in part and (self._texts or self._calls))

    def add(self, part: Message) -> None:
        if part["content"]:
            self._texts.append(part["content"])
        if "reasoning" in part:
            self._thoughts.append(part["reasoning"])
        self._calls += part.get("tool_calls", ())
        self._key = part.get("key", self._key)

    def digested(self) -> tuple[Message, bytes]:
        """Return the turn as one message, with its digest."""
        message: Message = {"role": "assistant", "content": "\n".join(self._texts)}
        message |= {"reasoning": "\n".join(self._thoughts)} if self._thoughts else {}
        message |= {"tool_calls": self._calls} if self._calls else {}
        message |= {"key": self._key} if self._key else {}
        return message, message_digest(message)


def _message(item: dict[str, Any], path: str) -> ItemPart:
    role = as_string(item.get("role"), f"{path}.role")
    if role not in ROLES:
        malformed(f"{path}.role", f"{role!r} is not one of {', '.join(ROLES)}")
    content, images = _content(item.get("content"), f"{path}.content", with_images=role == "user")
    if role == "assistant":
        return _assistant(item, content=content)
    return whole(role, content, images)


def _reasoning(item: dict[str, Any], path: str) -> ItemPart:
    """Return the reasoning: its text if it was sent, otherwise its summary."""
    for name in ("content", "summary"):
        if item.get(name):
            parts = [as_object(part, f"{path}.{name}") for part in as_list(item[name], f"{path}.{name}")]
            text = "\n".join(as_string(part.get("text"), f"{path}.{name}.text") for part in parts)
            if text:
                return _assistant(item, reasoning=text)
    return _assistant(item)


def _function_call(item: dict[str, Any], path: str) -> ItemPart:
    arguments = as_arguments(item.get("arguments"), f"{path}.arguments")
    return _assistant(item, tool_calls=[_call(item, path, _name(item, path), arguments)])


def _custom_call(item: dict[str, Any], path: str) -> ItemPart:
    text = as_string(item.get(INPUT), f"{path}.{INPUT}")
    ours = _OUR_ID.fullmatch(str(item.get("id")))
    arguments = as_arguments(text, path) if ours and ours[2] else {INPUT: text}
    return _assistant(item, tool_calls=[_call(item, path, _name(item, path), arguments)])


def _search_call(item: dict[str, Any], path: str) -> ItemPart:
    _check_execution(item, path)
    return _assistant(item, tool_calls=[_call(item, path, SEARCH, as_arguments(item.get("arguments"), f"{path}.arguments"))])


def _call_output(item: dict[str, Any], path: str) -> ItemPart:
    content, images = _content(item.get("output"), f"{path}.output", with_images=True)
    return _result(item, path, content, images)


def _search_output(item: dict[str, Any], path: str) -> ItemPart:
    """Return the definitions that were found as the text of a tool result, so that the history is only extended."""
    _check_execution(item, path)
    found = parse_tools(item.get("tools"), f"{path}.tools")
    return replace(_result(item, path, tools_text(found.tools)), tools=found)


def _additional_tools(item: dict[str, Any], path: str) -> ItemPart:
    tools = parse_tools(item.get("tools"), f"{path}.tools")
    return replace(whole("developer", tools_text(tools.tools)), tools=tools, opens=True)


def _configuration(item: dict[str, Any], path: str) -> ItemPart:
    """Return nothing: the run decides the reasoning effort."""
    text = as_object(item.get("text") or {}, f"{path}.text")
    check_format(text.get("format"), f"{path}.text.format")
    return ItemPart()


PARSERS: Final[dict[str, Callable[[dict[str, Any], str], ItemPart]]] = {
    "message": _message,
    "reasoning": _reasoning,
    "function_call": _function_call,
    "function_call_output": _call_output,
    "custom_tool_call": _custom_call,
    "custom_tool_call_output": _call_output,
    "tool_search_call": _search_call,
    "tool_search_output": _search_output,
    "additional_tools": _additional_tools,
    "configuration_update": _configuration,
}


def check_format(value: Any, path: str) -> None:
    """Refuse any text format that constrains sampling."""
    kind = as_object(value or {}, path).get("type", "text")
    if kind != "text":
        refuse(path, f"{kind!r} is not served: its sampling is constrained; ask for it in the prompt")


def _assistant(item: dict[str, Any], **said: Any) -> ItemPart:
    """Return an assistant's part of a turn, with the answer key if it came back."""
    message: Message = {"role": "assistant", "content": "", **said}
    key = _key(item)
    return ItemPart(message=message | {"key": key} if key else message)


def wire_call_id(call_id: str) -> str:
    """Return a tool call's id in OpenAI's form, `call_...`; OpenClaw rewrites any other. Reading removes the underscore again."""
    return f"call_{call_id.removeprefix('call')}"


def _key(item: dict[str, Any]) -> str | None:
    ours = _OUR_ID.fullmatch(str(item.get("id")))
    return our_key(item.get("encrypted_content")) or (ours[1] if ours else None)


def _name(item: dict[str, Any], path: str) -> str:
    namespace = item.get("namespace")
    wire = as_name(item.get("name"), f"{path}.name")
    return flat_name(None if namespace is None else as_string(namespace, f"{path}.namespace"), wire)


def _call(item: dict[str, Any], path: str, name: str, arguments: dict[str, Any] | str) -> Message:
    return {"id": _call_id(item, path), "name": name, "arguments": arguments}


def _result(item: dict[str, Any], path: str, content: str | list[Message], images: tuple[Image, ...] = ()) -> ItemPart:
    return whole("tool", content, images, tool_call_id=_call_id(item, path))


def _call_id(item: dict[str, Any], path: str) -> str:
    given = as_name(item.get("call_id"), f"{path}.call_id")
    return f"call{given.removeprefix('call_')}" if given.startswith("call_") else given


def _check_execution(item: dict[str, Any], path: str) -> None:
    if item.get("execution", "client") != "client":
        refuse(f"{path}.execution", "only the client's own tool search is served")


def _content(value: Any, path: str, *, with_images: bool) -> tuple[str | list[Message], tuple[Image, ...]]:
    if value is None or isinstance(value, str):
        return value or "", ()
    if not isinstance(value, list):
        malformed(path, "must be a string or a list of parts")
    parts: list[Message] = []
    images: list[Image] = []
    for item, at in as_items(value, path):
        part = as_object(item, at)
        kind = as_string(part.get("type"), f"{at}.type")
        if kind in TEXT_PARTS:
            field = TEXT_PARTS[kind]
            parts.append({"type": "text", "text": as_string(part.get(field), f"{at}.{field}")})
        elif kind == "input_image" and with_images:
            if part.get("file_id"):
                refuse(f"{at}.file_id", "files are not stored; send the image itself as a data URL in `image_url`")
            images.append(image_at(part.get("image_url"), f"{at}.image_url"))
            parts.append(image_part(images[-1]))
        else:
            refuse(f"{at}.type", f"{kind!r} parts are not served here")
    return joined(parts), tuple(images)
