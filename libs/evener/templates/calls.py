"""How families of models spell tool calls in sampled text. Pure.

These are the spellings that the families' chat templates write and teach. A block that is incomplete or invalid stays text.

A model may write any number of blocks that never close. So what one try to read a block has found serves the further ones, and the time of
all grows with the length of the text and no faster.
"""

import json
import math
import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn, Protocol

from msgspec import Struct

from evener.tokens.digests import Message
from evener.tokens.numbers import read_float, read_integer

Found = tuple[str, dict[str, Any]]
"""The name and arguments of a call."""
Read = Callable[[int], tuple[Sequence[Found], int] | None]
"""Given the position after an opening mark in a text: the calls and the end of their block, or None. Positions come in their order."""
BlockReader = Callable[[str, Mapping[str, Mapping[str, Any]]], Read]
"""Given a text and the parameter schemas by tool: what reads the blocks in this text."""
HERMES, HERMES_END = "<tool_call>", "</tool_call>"
DEEPSEEK, DEEPSEEK_END = "<\uff5ctool\u2581calls\u2581begin\uff5c>", "<\uff5ctool\u2581calls\u2581end\uff5c>"
PYTHON_TAG: Final = "<|python_tag|>"
SPACE: Final = re.compile(r"\s*")
MAX_NESTED: Final = 64
"""The deepest nesting of objects and lists in a call. The call must come back inside a request, which may nest 100 levels."""


class ToolCallFormat(Protocol):
    """A spelling of tool calls."""

    def split(self, text: str, tools: Sequence[Message]) -> tuple[str, tuple[Found, ...]]:
        """Return the text around the calls, and the calls. Without a call the text is unchanged."""
        ...

    def certain(self, text: str) -> str:
        """Return a prefix of what `split` leaves of every text that begins with `text`."""
        ...


class Blocks(Struct, frozen=True):
    """Calls between marks. White space next to a block belongs to the template."""

    opener: str
    reader: BlockReader

    def split(self, text: str, tools: Sequence[Message]) -> tuple[str, tuple[Found, ...]]:
        kept: list[str] = []
        calls: list[Found] = []
        done = at = 0
        if self.opener not in text:
            return text, ()
        read = self.reader(_Unplaced(text), _schemas(tools))
        while (start := text.find(self.opener, at)) >= 0:
            block = read(start + len(self.opener))
            if block is None:
                at = start + len(self.opener)
                continue
            found, at = block
            kept.append(text[done:start])
            calls += found
            done = at
        if not calls:
            return text, ()
        kept = [kept[0].rstrip(), *(part.strip() for part in kept[1:]), text[done:].strip()]
        return "\n".join(part for part in kept if part), tuple(calls)

    def certain(self, text: str) -> str:
        return before(self.opener, text).rstrip()


class WholeJson(Struct, frozen=True):
    """An answer that consists of one call as JSON with `parameters` (Llama 3), optionally after `<|python_tag|>`."""

    def split(self, text: str, tools: Sequence[Message]) -> tuple[str, tuple[Found, ...]]:
        del tools
        head, _, after = text.rpartition(PYTHON_TAG)
        call = _named(read_json(after, 0), "parameters")
        if call is None or after[call[1] :].strip():
            return text, ()
        return head.rstrip(), (call[0],)

    def certain(self, text: str) -> str:
        if not text.strip() or text.lstrip().startswith("{"):
            return ""
        return before(PYTHON_TAG, text).rstrip()


class _Unplaced(str):
    """A text in which errors have no line. `json` counts the lines before each error, which is all of the text each time."""

    __slots__ = ()

    def count(self, *_: Any) -> int:
        return 0

    def rfind(self, *_: Any) -> int:
        return -1


def read_json(text: str, at: int) -> tuple[Any, int] | None:
    """Return the JSON value at a position, after white space, and its end. None: there is none, or it could not be sent back."""
    try:
        value, end = _decoder.raw_decode(text, _skip(text, at))
        json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair is valid JSON, but no text
    except (ValueError, RecursionError):
        return None
    return None if _nests(value, MAX_NESTED) else (value, _skip(text, end))


def before(mark: str, text: str) -> str:
    """Return the text before `mark`, or the text that is certainly before it if a longer text could complete it."""
    head, found, _ = text.partition(mark)
    return head if found else without_beginning_of(mark, head)


def without_beginning_of(mark: str, text: str) -> str:
    """Return `text` without an ending that a longer text could complete to `mark`."""
    for size in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:size]):
            return text[:-size]
    return text


def _hermes(text: str, _: Mapping[str, Mapping[str, Any]]) -> Read:
    def read(at: int) -> tuple[Sequence[Found], int] | None:
        call = _named(read_json(text, at), "arguments")
        if call is None or not text.startswith(HERMES_END, call[1]):
            return None
        return [call[0]], call[1] + len(HERMES_END)

    return read


class _Pairs(Struct, frozen=True):
    """How a block spells a name, and pairs of keys and values."""

    name: re.Pattern[str]
    key: re.Pattern[str]
    """Matches up to the beginning of the value."""
    value_end: str
    end: re.Pattern[str]

    def reader(self, text: str, schemas: Mapping[str, Mapping[str, Any]]) -> Read:
        ends = [found.start() for found in re.finditer(re.escape(self.value_end), text)]
        broken: set[int] = set()
        """Where a value ends from which on no block is whole, whichever one it is of."""

        def read(at: int) -> tuple[Sequence[Found], int] | None:
            named = self.name.match(text, at)
            if named is None:
                return None
            at, pairs, seen = named.end(), list[tuple[str, int, int]](), list[int]()
            while at not in broken and (key := self.key.match(text, at)) is not None:
                index = bisect_left(ends, key.end())
                if index == len(ends):
                    break
                pairs.append((key[1], key.end(), ends[index]))
                at = ends[index] + len(self.value_end)
                seen.append(at)
            closed = None if at in broken else self.end.match(text, at)
            if closed is None:
                broken.update(seen)
                return None
            known = schemas.get(named[1], {})
            arguments = {key: _typed(text[start:stop].removesuffix("\n"), known.get(key)) for key, start, stop in pairs}
            return [(named[1], arguments)], closed.end()

        return read


_FUNCTIONS: Final = _Pairs(
    name=re.compile(r"\s*<function=([^<>\s]+)>"),
    key=re.compile(r"\s*<parameter=([^<>\s]+)>\n?"),
    value_end="</parameter>",
    end=re.compile(r"\s*</function>\s*</tool_call>"),
)
_KEYS: Final = _Pairs(
    name=re.compile(r"\s*([^<>\s{}\"]+)"),
    key=re.compile(r"\s*<arg_key>([^<>\s]+)</arg_key>\s*<arg_value>"),
    value_end="</arg_value>",
    end=re.compile(r"\s*</tool_call>"),
)


def _typed(value: str, schema: Any) -> Any:
    """Return a value that is spelled without quotes, in the type that its tool declares, otherwise as JSON unless it is a string."""
    declared = schema.get("type") if isinstance(schema, dict) else None
    if declared == "string":
        return value
    found = read_json(value, 0)
    if found is None or found[1] != len(value) or isinstance(found[0], str):
        return value
    return found[0]


_DEEPSEEK_CALL: Final = re.compile(
    r"\s*<\uff5ctool\u2581call\u2581begin\uff5c>"
    r"(?:function<\uff5ctool\u2581sep\uff5c>([^\n<]+)\n```json\n|([^\n<]+)<\uff5ctool\u2581sep\uff5c>)"
)
_DEEPSEEK_CALLED: Final = re.compile(r"(?:```)?\s*<\uff5ctool\u2581call\u2581end\uff5c>")


def _deepseek(text: str, _: Mapping[str, Mapping[str, Any]]) -> Read:
    def read(at: int) -> tuple[Sequence[Found], int] | None:
        calls: list[Found] = []
        while (begun := _DEEPSEEK_CALL.match(text, at)) is not None:
            found = read_json(text, begun.end())
            closed = None if found is None else _DEEPSEEK_CALLED.match(text, found[1])
            if found is None or closed is None or not isinstance(found[0], dict):
                return None
            calls.append((begun[1] or begun[2], found[0]))
            at = closed.end()
        at = _skip(text, at)
        return (calls, at + len(DEEPSEEK_END)) if calls and text.startswith(DEEPSEEK_END, at) else None

    return read


def _named(found: tuple[Any, int] | None, arguments: str) -> tuple[Found, int] | None:
    """Return the call in a JSON object `{"name": ..., ARGUMENTS: {...}}`."""
    if found is None or not isinstance(found[0], dict):
        return None
    name, given = found[0].get("name"), found[0].get(arguments)
    if not isinstance(name, str) or not name or not isinstance(given, dict):
        return None
    return (name, given), found[1]


def _schemas(tools: Sequence[Message]) -> dict[str, Mapping[str, Any]]:
    """Return the parameter schemas by tool name."""
    read: dict[str, Mapping[str, Any]] = {}
    for tool in tools:
        parameters = tool.get("parameters")
        properties = parameters.get("properties") if isinstance(parameters, dict) else None
        read[str(tool.get("name"))] = properties if isinstance(properties, dict) else {}
    return read


def _nests(value: Any, levels: int) -> bool:
    """Return whether objects and lists are nested deeper than this."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return inner is not None and (levels == 0 or any(_nests(one, levels - 1) for one in inner))


def _skip(text: str, at: int) -> int:
    found = SPACE.match(text, at)
    return found.end() if found else at


def _finite(digits: str) -> float:
    number = read_float(digits)
    if not math.isfinite(number):
        _not_json(digits)
    return number


def _not_json(constant: str) -> NoReturn:
    msg = f"{constant} is not JSON"
    raise ValueError(msg)


_decoder: Final = json.JSONDecoder(parse_float=_finite, parse_int=read_integer, parse_constant=_not_json)
CALL_FORMATS: Final[Mapping[str, ToolCallFormat]] = {
    "hermes": Blocks(HERMES, _hermes),
    "functions": Blocks(HERMES, _FUNCTIONS.reader),
    "keys": Blocks(HERMES, _KEYS.reader),
    "json": WholeJson(),
    "deepseek": Blocks(DEEPSEEK, _deepseek),
}
"""The formats by name.

- `hermes`: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`
- `functions`: `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`
- `keys`: `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>`
- `json`: an answer that is one call (`WholeJson`)
- `deepseek`: that of V3 (`function`, NAME and fenced JSON between marks) and V3.1 (NAME and JSON)
"""
