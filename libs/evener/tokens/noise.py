"""Cuts text of a harness that varies without meaning, as its quirks declare it. Pure."""

from typing import Any

from evener.proto.patterns import TextPattern, text_pattern
from evener.proto.spec import Noise
from evener.tokens.digests import Digest, Message, message_digest

Cut = tuple[Message, Digest, tuple[str, ...]]
"""A message without its noise, the digest of that message, and the texts that were cut."""


class NoiseFilter:
    """Cuts what the patterns match. It remembers every message by its digest, so that a long history is searched once."""

    def __init__(self, noise: tuple[Noise, ...]) -> None:
        self._noise = noise
        self._known: dict[Digest, Cut | None] = {}
        """The cuts by message digest. None: nothing is cut."""

    @property
    def active(self) -> bool:
        """Whether the filter ever cuts anything."""
        return bool(self._noise)

    def cut(self, message: Message, digest: Digest) -> Cut:
        """Return the message without noise. Raises BadPattern, SlowPattern.

        A message that consisted of noise stays, empty, so that no message changes its place.
        """
        if digest not in self._known:
            self._known[digest] = self._search(message)
        return self._known[digest] or (message, digest, ())

    def _search(self, message: Message) -> Cut | None:
        role = "system" if message.get("role") == "developer" else message.get("role")
        patterns = [text_pattern(one.pattern) for one in self._noise if one.where == role]
        cuts: list[str] = []
        content = _without(message.get("content"), patterns, cuts)
        if not cuts:
            return None
        clean = message | {"content": content}
        return clean, message_digest(clean), tuple(cuts)


def _without(content: Any, patterns: list[TextPattern], cuts: list[str]) -> Any:
    if isinstance(content, str):
        for pattern in patterns:
            content, found = pattern.cut(content)
            cuts += found
        return content
    if isinstance(content, list):
        return [part | {"text": _without(part["text"], patterns, cuts)} if part.get("type") == "text" else part for part in content]
    return content
