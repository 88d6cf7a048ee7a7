"""Reads what headless harnesses print: one JSON object per line, possibly cut in the middle of the output."""

import re
from typing import Any, Final

import msgspec

DETAIL_CHARACTERS: Final = 500


def last_event(log: bytes, *types: str) -> dict[str, Any] | None:
    """Return the last printed object whose `type` is one of `types`. None: there is none."""
    for line in reversed(log.splitlines()):
        if not line.startswith(b"{"):
            continue
        try:
            event = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # an agent may print anything
            continue
        if isinstance(event, dict) and event.get("type") in types:
            return event
    return None


def told(event: dict[str, Any] | None, *names: str) -> str:
    """Return the text under these nested names. Empty: there is none."""
    value: Any = event
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, str) else ""


def last_found(pattern: re.Pattern[bytes], log: bytes) -> str:
    """Return the end of what a pattern's group matched last, or the last line of an output in which it matches nothing."""
    found: list[bytes] = pattern.findall(log)
    return found[-1].decode(errors="replace")[-DETAIL_CHARACTERS:] if found else last_line(log)


def last_line(log: bytes) -> str:
    """Return the last line of an output."""
    return log.strip().rpartition(b"\n")[2].decode(errors="replace")[-DETAIL_CHARACTERS:]
