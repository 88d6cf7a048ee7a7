"""How a session's conversations begin: which one a call that extends nothing goes on with, or that it begins one.

A conversation is told by its head: its messages up to and with the first one of the user. Only calls with an answer count: one that
failed is asked again as if for the first time.
"""

import hashlib
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from evener.tokens.digests import Digest, Message, message_digest

QUOTED_CALLS: Final = 8
"""Latest answers that a summary may quote."""
QUOTED_LEAST: Final = 24
"""Characters of an answer that nobody repeats by chance."""
COMPACTED_WITHIN: Final = 8
"""A summary that replaces a history stands within so many first messages."""
LEAST_TURNS: Final = 2
"""Nobody compacts a history of one turn: a harness that leaves its only one out has dropped it."""

Head = tuple[Digest, ...]


class Begun(Struct):
    """A conversation with an answer."""

    name: str
    head: Head
    starts: set[Digest]
    """What it was asked with: digests of tools and options."""
    turns: int = 0
    """Of the longest history in it, the answer included. 0: its answers were aborted."""


class Beginnings:
    """The conversations of one attempt's calls, as an index. Derived; dropped and rebuilt at will."""

    def __init__(self) -> None:
        self._begun: dict[tuple[Head, bool], Begun] = {}
        """The one that was answered last stands last."""
        self._waiting: dict[str, bool] = {}
        """By conversation: whether its last answer called tools."""
        self._of_answer: dict[Digest, Begun] = {}
        self._of_tool_call: dict[str, Begun] = {}
        self._latest: deque[tuple[str, Begun]] = deque(maxlen=QUOTED_CALLS)
        """Texts of the latest answers."""

    @property
    def waited_for(self) -> bool:
        """Whether the last answer of some conversation called tools: it is in the middle of its work."""
        return any(self._waiting.values())

    def find(self, head: Head, *, sub_agent: bool) -> Begun | None:
        """Return the conversation with this head. None: no call of such a one was closed."""
        return self._begun.get((head, sub_agent))

    def answered(self, name: str, head: Head, start: Digest, answer: Message, turns: int, *, sub_agent: bool) -> None:
        """Note an answer. `turns`: those of its history, its own included; 0 where it was aborted."""
        begun = self._begun.pop((head, sub_agent), None) or Begun(name, head, set())
        self._begun[head, sub_agent] = begun
        begun.starts.add(start)
        if not turns:
            return
        begun.turns = max(begun.turns, turns)
        self._waiting[name] = bool(answer.get("tool_calls"))
        self._of_answer[message_digest(answer)] = begun
        self._of_tool_call.update({str(call["id"]): begun for call in answer.get("tool_calls") or ()})
        if len(text := text_of(answer).strip()) >= QUOTED_LEAST:
            self._latest.append((text, begun))

    def answering(self, messages: Sequence[Message], digests: Sequence[Digest]) -> Begun | None:
        """Return the conversation that the last answer of ours in a history is of, wherever it stands."""
        for message, digest in zip(reversed(messages), reversed(digests), strict=True):
            if message.get("role") != "assistant":
                continue
            named = (self._of_tool_call.get(str(call.get("id"))) for call in message.get("tool_calls") or ())
            found = next(filter(None, named), None) or self._of_answer.get(digest)
            if found is not None:
                return found
        return None

    def quoted(self, messages: Sequence[Message], head: Head, start: Digest) -> Begun | None:
        """Return the conversation whose history a summary replaces: under its system prompt and tools, a message quotes an answer."""
        users = [text_of(message) for message in messages[:COMPACTED_WITHIN] if message.get("role") == "user"]
        for text, begun in reversed(self._latest):
            alike = begun.turns >= LEAST_TURNS and begun.head[:-1] == head[:-1] and start in begun.starts
            if alike and any(text in user for user in users):
                return begun
        return None

    def latest_under(self, head: Head) -> Begun | None:
        """Return the conversation that was answered last under the same system prompt; else the last of all. None: there is none."""
        latest = list(reversed(self._begun.values()))
        return next((begun for begun in latest if begun.head[:-1] == head[:-1]), latest[0] if latest else None)


def head_of(messages: Sequence[Message], digests: Sequence[Digest]) -> Head:
    """Return the digests of the messages up to and with the first one of the user."""
    first = next((at for at, message in enumerate(messages) if message.get("role") == "user"), len(messages))
    return tuple(digests[: first + 1])


def name_of(head: Head, *, sub_agent: bool) -> str:
    """Return the name of a conversation that begins so: equal beginnings have equal names, whichever is answered first."""
    return hashlib.blake2b(b"".join(head), digest_size=8, person=b"sub_agent" if sub_agent else b"agent").hexdigest()


def text_of(message: Message) -> str:
    """Return all text of a message."""
    content: Any = message.get("content")
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content or () if isinstance(part, dict))
