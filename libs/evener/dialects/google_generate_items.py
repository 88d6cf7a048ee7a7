"""Converts contents of Google's generateContent to the canonical form. Pure.

Each content is parsed separately, then the contents of a request are assembled. Clients keep the pieces of a streamed answer as they came.
Therefore consecutive `model` contents are one answer, and their texts are joined without a separator. Where the API has a list, it takes a
single object too.
"""

import base64
import binascii
import itertools
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from msgspec import Struct

from evener.dialects.canonical import Image
from evener.dialects.fields import as_flag, as_items, as_name, as_object, as_string, malformed, refuse
from evener.dialects.images import image_part, images_within, read_image
from evener.dialects.wire import TOOL_ERROR, canonical_arguments, joined, our_key, wire_json
from evener.proto.ids import keyed_call_id
from evener.tokens.digests import Message

MODEL_ROLE: Final = "model"
ROLES: Final = {"model": MODEL_ROLE, "user": "user", "function": "user"}
OUTPUTS: Final = ("output", "result", "content")
"""A result that has only one of these fields, with a string, is that string."""
_SNAKE: Final = re.compile(r"_([a-z0-9])")
_URL_SAFE: Final = str.maketrans("-_", "+/")


class ContentItem(Struct, frozen=True, kw_only=True, eq=False):
    """The parsed form of one content: a piece of an answer, or tool results followed by what the user says."""

    role: str
    text: str = ""
    """Part of an answer, like `reasoning`, `calls` and `key`."""
    reasoning: str = ""
    calls: tuple[Message, ...] = ()
    """Tool calls. The id is "" if the client dropped it, also in `results`."""
    key: str | None = None
    results: tuple[Message, ...] = ()
    said: Message | None = None
    images: tuple[Image, ...] = ()


def read_object(value: Any, path: str) -> dict[str, Any]:
    """Return an object's non-null fields in camel case: the wire accepts `inline_data` for `inlineData`."""
    return {camel(name): inner for name, inner in as_object(value, path).items() if inner is not None}


def read_objects(value: Any, path: str) -> list[tuple[dict[str, Any], str]]:
    """Return the objects of a list, each with its path, or a single one."""
    return [(read_object(one, at), at) for one, at in as_items([value] if isinstance(value, dict) else value, path)]


def camel(name: str) -> str:
    """Return a field's name in camel case."""
    return _SNAKE.sub(lambda found: found[1].upper(), name)


def parse_item(value: Any, path: str) -> ContentItem:
    """Parse a content. Raises RequestError."""
    content = read_object(value, path)
    role = ROLES.get(as_string(content.get("role", "user"), f"{path}.role")) or malformed(
        f"{path}.role", f"must be one of {', '.join(ROLES)}"
    )
    parts = read_objects(content.get("parts", []), f"{path}.parts")
    return _answer_piece(parts) if role == MODEL_ROLE else _user(parts, path)


def parse_text(value: Any, path: str) -> str:
    """Return the text of a content: its parts, joined with newlines. It may be a text or a single part as well."""
    if isinstance(value, str):
        return value
    content = read_object(value, path)
    if "text" in content:
        return _text(content, path)
    return "\n".join(_text(part, at) for part, at in read_objects(content.get("parts", []), f"{path}.parts"))


def assembled(items: Iterable[ContentItem]) -> list[Message]:
    """Return the canonical messages.

    Calls that came back without ids get those of their answer if the answer key came back too, otherwise "". Results without ids belong to
    the calls of the last answer, by name and order.
    """
    messages: list[Message] = []
    waiting = _Waiting(())
    for turn in _turns(items):
        if turn[0].role == MODEL_ROLE:
            answer = _answer(turn)
            waiting = _Waiting(answer.get("tool_calls", ()))
            messages.append(answer)
            continue
        messages += [waiting.paired(result) for result in turn[0].results]
        if turn[0].said is not None:
            messages.append(turn[0].said)
    return messages


def _turns(items: Iterable[ContentItem]) -> Iterator[Sequence[ContentItem]]:
    """Yield items of the user separately and the pieces of an answer together. Two answer keys mean two answers."""
    pieces: list[ContentItem] = []
    key: str | None = None
    for item in items:
        if pieces and (item.role != MODEL_ROLE or (key and item.key and item.key != key)):
            yield pieces
            pieces, key = [], None
        if item.role == MODEL_ROLE:
            pieces.append(item)
            key = key or item.key
        else:
            yield [item]
    if pieces:
        yield pieces


def _answer(pieces: Sequence[ContentItem]) -> Message:
    key = next((piece.key for piece in pieces if piece.key), None)
    message: Message = {"role": "assistant", "content": "".join(piece.text for piece in pieces)}
    reasoning = "".join(piece.reasoning for piece in pieces)
    if reasoning.strip():
        message["reasoning"] = reasoning
    calls = list(itertools.chain.from_iterable(piece.calls for piece in pieces))
    if calls:
        message["tool_calls"] = [
            {**call, "id": keyed_call_id(key, index)} if key and not call["id"] else call for index, call in enumerate(calls)
        ]
    return message | ({"key": key} if key else {})


class _Waiting:
    """The calls of an answer that have no result yet."""

    def __init__(self, calls: Sequence[Message]) -> None:
        self._calls = calls
        self._answered: set[int] = set()
        self._by_id: defaultdict[str, deque[int]] = defaultdict(deque)
        self._by_name: defaultdict[str, deque[int]] = defaultdict(deque)
        for index, call in enumerate(calls):
            self._by_id[call["id"]].append(index)
            self._by_name[call["name"]].append(index)

    def paired(self, result: Message) -> Message:
        """Return a result with the id of its call, which then has its result."""
        given = result["tool_call_id"]
        indices = self._by_id[given] if given else self._by_name[result["name"]]
        while indices:
            index = indices.popleft()
            if index not in self._answered:
                self._answered.add(index)
                return result if given else {**result, "tool_call_id": self._calls[index]["id"]}
        return result


def _answer_piece(parts: Sequence[tuple[Message, str]]) -> ContentItem:
    texts: dict[bool, list[str]] = {False: [], True: []}
    calls: list[Message] = []
    keys: list[str | None] = []
    for part, at in parts:
        keys.append(_key(part.get("thoughtSignature")))
        if "functionCall" in part:
            calls.append(_call(part["functionCall"], f"{at}.functionCall"))
        elif part.keys() - {"thought", "thoughtSignature"}:
            texts[as_flag(part.get("thought"), f"{at}.thought")].append(_text(part, at))
    key = next((key for key in keys if key), None)
    return ContentItem(role=MODEL_ROLE, text="".join(texts[False]), reasoning="".join(texts[True]), calls=tuple(calls), key=key)


def _user(parts: Sequence[tuple[Message, str]], path: str) -> ContentItem:
    results: list[Message] = []
    said: list[Message] = []
    images: dict[str, Image] = {}
    for part, at in parts:
        if "functionResponse" in part:
            results.append(_result(part["functionResponse"], f"{at}.functionResponse", images))
        else:
            said.append(_part(part, at, images))
    message: Message | None = {"role": "user", "content": joined(said)} if said or not results else None
    return ContentItem(role="user", results=tuple(results), said=message, images=images_within(images.values(), path))


def _call(value: Any, path: str) -> Message:
    call = read_object(value, path)
    arguments = as_object(call.get("args", {}), f"{path}.args")
    name = as_name(call.get("name"), f"{path}.name")
    return {"id": as_string(call.get("id", ""), f"{path}.id"), "name": name, "arguments": canonical_arguments(arguments)}


def _result(value: Any, path: str, images: dict[str, Image]) -> Message:
    sent = read_object(value, path)
    content: str | list[Message] = _output(as_object(sent.get("response", {}), f"{path}.response"))
    shown = [_part(part, at, images) for part, at in read_objects(sent.get("parts", []), f"{path}.parts")]
    if shown:
        content = joined([{"type": "text", "text": content}, *shown])
    name = as_name(sent.get("name"), f"{path}.name")
    return {"role": "tool", "content": content, "tool_call_id": as_string(sent.get("id", ""), f"{path}.id"), "name": name}


def _output(response: dict[str, Any]) -> str:
    """Return the output of a tool as text. An error is marked."""
    if len(response) == 1:
        ((name, value),) = response.items()
        if isinstance(value, str) and name in (*OUTPUTS, "error"):
            return TOOL_ERROR + value if name == "error" else value
    return wire_json(response).decode()


def _part(part: Message, path: str, images: dict[str, Image]) -> Message:
    if "inlineData" in part:
        at = f"{path}.inlineData"
        sent = read_object(part["inlineData"], at)
        data = as_string(sent.get("data"), f"{at}.data").translate(_URL_SAFE)
        image = read_image(sent.get("mimeType"), data, type_path=f"{at}.mimeType", data_path=f"{at}.data")
        images.setdefault(image.digest, image)
        return image_part(image)
    return {"type": "text", "text": _text(part, path)}


def _text(part: Message, path: str) -> str:
    if "text" not in part:
        kinds = ", ".join(sorted(part)) or "nothing"
        refuse(path, f"a part with {kinds} is not served here")
    return as_string(part["text"], f"{path}.text")


def _key(signature: Any) -> str | None:
    """Return the answer key in a signature, which is base64 in this API. Any other signature means nothing."""
    if not isinstance(signature, str):
        return None
    try:
        return our_key(base64.b64decode(signature.translate(_URL_SAFE) + "=" * (-len(signature) % 4), validate=True).decode("ascii"))
    except (binascii.Error, ValueError):
        return None
