"""Finds where two versions of a text differ without meaning, as patterns that cut the difference. Pure."""

import re
from operator import eq
from typing import Final

from msgspec import Struct

SPOTS: Final = 3
"""Two texts that differ in more places than this are different texts."""
SPOT_CHARACTERS: Final = 80
LEAD_CHARACTERS: Final = 24
"""The length of the text before a difference, by which the pattern finds it."""
_CLASSES: Final = ((re.compile(r"\d+"), r"\d+"), (re.compile(r"[A-Za-z]+"), r"[A-Za-z]+"))


class TextDifference(Struct, frozen=True):
    """A place at which two texts differ."""

    pattern: str
    """The regular expression that cuts it, and nothing in which they agree."""
    words: tuple[str, ...]
    """The words that the pattern cuts from the two texts, each once."""


def differences(one: str, other: str) -> tuple[TextDifference, ...]:
    """Return the differences that, cut one after the other, make the texts equal. Empty: the texts are equal, or differ too much."""
    found: list[TextDifference] = []
    while one != other:
        pattern = _spot(one, other) if len(found) < SPOTS else None
        if pattern is None:
            return ()
        cut = re.findall(pattern, one), re.findall(pattern, other)
        if not cut[0] or len(cut[0]) != len(cut[1]) or any(map(eq, *cut)):  # it would cut what does not differ
            return ()
        found.append(TextDifference(pattern, tuple(dict.fromkeys((*cut[0], *cut[1])))))
        one, other = re.sub(pattern, "", one), re.sub(pattern, "", other)
    return tuple(found)


def _spot(one: str, other: str) -> str | None:
    """Return a pattern of the first difference, widened to whole words."""
    start = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    while start and not one[start - 1].isspace():
        start -= 1
    tails = [re.match(r"\S*", text[start:]) for text in (one, other)]
    first, second = (tail[0] if tail else "" for tail in tails)
    if not first or not second or max(len(first), len(second)) > SPOT_CHARACTERS:
        return None
    word = _general(first)
    if re.fullmatch(word, second) is None:
        word = r"\S+"
    line = one[:start].rpartition("\n")[2]
    lead = line[-LEAD_CHARACTERS:]
    return f"(?<={_plain(lead)}){word}" if re.search(r"[^\W\d_]", lead) else None  # without a word before it, it is everywhere


def _general(word: str) -> str:
    """Return a pattern that matches similar words: digits and letters may differ, other characters may not."""
    parts: list[str] = []
    at = 0
    while at < len(word):
        for kind, pattern in _CLASSES:
            if (found := kind.match(word, at)) is not None:
                parts.append(pattern)
                at = found.end()
                break
        else:
            parts.append(_plain(word[at]))
            at += 1
    return "".join(parts)


def _plain(text: str) -> str:
    return re.escape(text).replace("\\ ", " ")
