"""Sampled text to a canonical assistant message. Pure.

Tool calls are hermes blocks, `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`; reasoning stands in `<think>` before
the answer. What is not a whole, valid block stays text: the harness sees what the model wrote.
"""

import json
import math
import re
from typing import Any, Final, NoReturn

from msgspec import Struct

from evener.proto.ids import tool_call_id
from evener.templates.port import Message

THINK, THOUGHT = "<think>", "</think>"
CALL, CALLED = "<tool_call>", "</tool_call>"
SPACE: Final = re.compile(r"\s*")


class Parser(Struct, frozen=True, kw_only=True):
    """How a policy's template spells answers."""

    tool_calls: bool
    """Hermes blocks are tool calls."""
    thinks: bool
    """Reasoning stands in `<think>`."""
    thinking: bool = False
    """The generation prompt opens the reasoning, so that an answer begins inside it."""

    def parse(self, text: str, *, call_id: str, choice: int) -> Message:
        """Return the canonical assistant message of an answer's text, without its end-of-turn token."""
        reasoning, content = self._split_reasoning(text)
        calls: list[tuple[str, dict[str, Any]]] = []
        if self.tool_calls:
            content, calls = split_calls(content)
        message: Message = {"role": "assistant", "content": content}
        if reasoning.strip():
            message["reasoning"] = reasoning
        if calls:
            message["tool_calls"] = [
                {"id": tool_call_id(call_id, choice, index), "name": name, "arguments": arguments}
                for index, (name, arguments) in enumerate(calls)
            ]
        return message

    def _split_reasoning(self, text: str) -> tuple[str, str]:
        """Return reasoning and the rest. An unfinished reasoning (length) has no rest."""
        opened = text.lstrip()
        if self.thinks and opened.startswith(THINK):
            inside = opened.removeprefix(THINK)
        elif self.thinks and self.thinking:
            inside = text
        else:
            return "", text
        reasoning, _, content = inside.partition(THOUGHT)
        return reasoning.strip("\n"), content.lstrip("\n")


def split_calls(text: str) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
    """Return the text around the valid blocks, and (name, arguments) of each. White space next to a block is the template's glue."""
    kept: list[str] = []
    calls: list[tuple[str, dict[str, Any]]] = []
    done = at = 0
    while (start := text.find(CALL, at)) >= 0:
        block = _read_call(text, start + len(CALL))
        if block is None:
            at = start + len(CALL)
            continue
        name, arguments, at = block
        kept.append(text[done:start])
        calls.append((name, arguments))
        done = at
    if not calls:
        return text, []
    kept = [kept[0].rstrip(), *(part.strip() for part in kept[1:]), text[done:].strip()]
    return "\n".join(part for part in kept if part), calls


def _read_call(text: str, at: int) -> tuple[str, dict[str, Any], int] | None:
    """Return name, arguments and the end of the block whose inside begins at `at`; None where it is broken."""
    try:
        value, end = _decoder.raw_decode(text, _skip(text, at))
        json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair is valid JSON, but no text
    except (ValueError, RecursionError):
        return None
    end = _skip(text, end)
    if not text.startswith(CALLED, end) or not isinstance(value, dict):
        return None
    name, arguments = value.get("name"), value.get("arguments")
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return name, arguments, end + len(CALLED)


def _skip(text: str, at: int) -> int:
    found = SPACE.match(text, at)
    return found.end() if found else at


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        _not_json(digits)
    return number


def _not_json(constant: str) -> NoReturn:
    msg = f"{constant} is not JSON"
    raise ValueError(msg)


_decoder: Final = json.JSONDecoder(parse_float=_finite, parse_constant=_not_json)
