"""Detects whether an agent repeats itself. Pure."""

import hashlib
import re
from collections.abc import Sequence
from typing import Any, Final

from evener.dialects.canonical import Message
from evener.tokens.digests import Digest, canonical_json

TAG: Final = re.compile(r"\s*<([A-Za-z][\w-]*)(?:\s[^<>]*)?>")


def looping(messages: Sequence[Message], repeats: int | None) -> bool:
    """Return whether the history ends with the same tool calls and results `repeats` times in a row, ignoring notes of the harness."""
    if repeats is None:
        return False
    last, count = None, 0
    results: list[Digest] = []
    """The results of the turn, the last one first."""
    for message in reversed(messages):
        if message.get("role") == "tool":
            results.append(_spell(message.get("content")))
        elif message.get("role") == "assistant" and message.get("tool_calls"):
            this = _spell([(call.get("name"), call.get("arguments")) for call in message["tool_calls"]]) + b"".join(reversed(results))
            if last is not None and this != last:
                return False
            last, count = this, count + 1
            results.clear()
            if count == repeats:
                return True
        elif not _is_note(message):
            return False
    return False


def _is_note(message: Message) -> bool:
    """Return whether a message is the harness's own: a system message, or a user message that consists of tagged text."""
    if message.get("role") in {"system", "developer"}:
        return True
    content = message.get("content")
    return message.get("role") == "user" and isinstance(content, str) and _tagged(content.strip())


def _tagged(text: str) -> bool:
    """Return whether a text is `<tag>...</tag>`, once or more."""
    at = 0
    while at < len(text):
        tag = TAG.match(text, at)
        end = -1 if tag is None else text.find(f"</{tag[1]}>", tag.end())
        if tag is None or end < 0:
            return False
        at = end + len(f"</{tag[1]}>")
    return bool(text)


def _spell(value: Any) -> Digest:
    return hashlib.blake2b(canonical_json(value), digest_size=16).digest()
