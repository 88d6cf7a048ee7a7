"""Finds which conversation of a session a root call continues, or that it begins a new one.

A conversation is identified by its head: its messages up to and including the first user message. Only answered calls count: a call that
failed is asked again as if for the first time.
"""

import hashlib
import re
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from evener.tokens.digests import Digest, Message, message_digest

QUOTED_CALLS: Final = 8
"""The number of latest answers that a summary may quote."""
QUOTED_LEAST: Final = 24
"""The least number of characters in an answer that nobody repeats by chance."""
COMPACTED_WITHIN: Final = 8
"""A summary that replaces a history is one of this many first messages."""
LEAST_TURNS: Final = 2
"""The least number of turns in a history that is compacted. A harness that omits its only turn has dropped it."""

SIGNATURE_CHARACTERS: Final = 60

OpeningDigests = tuple[Digest, ...]


class Begun(Struct):
    """A conversation that has an answer."""

    name: str
    head: OpeningDigests
    starts: set[Digest]
    """The digests of the tools and options with which the conversation was asked."""
    turns: int = 0
    """The number of turns in the conversation's longest history, the answer included. 0: all answers were aborted."""


class Beginnings:
    """An index of the conversations in one attempt. It is derived from the calls and can be rebuilt at any time."""

    def __init__(self) -> None:
        self._begun: dict[tuple[OpeningDigests, bool], Begun] = {}
        """The conversations; the one that was answered last comes last."""
        self._sub_agents: set[str] = set()
        """The names of the sub-agents' conversations."""
        self._waiting: dict[str, int | None] = {}
        """The step in which the last answer of each conversation called tools. None: it called none."""
        self._of_answer: dict[Digest, Begun] = {}
        self._of_tool_call: dict[str, Begun] = {}
        self._latest: deque[tuple[str, Begun]] = deque(maxlen=QUOTED_CALLS)
        """The texts of the latest answers."""

    def waited_for(self, step: int) -> bool:
        """Return whether the last answer of some conversation of this step called tools, so that its agent is waiting for results."""
        return any(self._waits(name, step) for name in self._waiting)

    def find(self, head: OpeningDigests, *, sub_agent: bool) -> Begun | None:
        """Return the conversation with this head. None: no call with this head was closed."""
        return self._begun.get((head, sub_agent))

    def sub_agent(self, name: str) -> None:
        """Note that a conversation is a sub-agent's."""
        self._sub_agents.add(name)

    def answered(
        self, name: str, head: OpeningDigests, start: Digest, answer: Message, turns: int, *, sub_agent: bool, step: int = 0
    ) -> None:
        """Note an answer. `turns` is the number of turns in its history, its own included; 0 if the answer was aborted.

        `step` is the task's: each step has a harness of its own, so that nobody waits in a later one.
        """
        begun = self._begun.pop((head, sub_agent), None) or Begun(name, head, set())
        self._begun[head, sub_agent] = begun
        begun.starts.add(start)
        if not turns:
            return
        begun.turns = max(begun.turns, turns)
        self._waiting[name] = step if answer.get("tool_calls") else None
        self._of_answer[message_digest(answer)] = begun
        self._of_tool_call.update({str(call["id"]): begun for call in answer.get("tool_calls") or ()})
        if len(text := text_of(answer).strip()) >= QUOTED_LEAST:
            self._latest.append((text, begun))

    def answering(self, messages: Sequence[Message], digests: Sequence[Digest]) -> Begun | None:
        """Return the conversation of the last sampled answer in a history, wherever that answer stands."""
        for message, digest in zip(reversed(messages), reversed(digests), strict=True):
            if message.get("role") != "assistant":
                continue
            named = (self._of_tool_call.get(str(call.get("id"))) for call in message.get("tool_calls") or ())
            found = next(filter(None, named), None) or self._of_answer.get(digest)
            if found is not None:
                return found
        return None

    def quoted(self, messages: Sequence[Message], head: OpeningDigests, start: Digest, step: int) -> Begun | None:
        """Return the conversation whose history a summary replaces: same system prompt and tools, and a message quotes its answer.

        If the summary was asked for apart, the message quotes another conversation's answer, and its agent waits for results that never
        come.
        """
        users = [text_of(message) for message in messages[:COMPACTED_WITHIN] if message.get("role") == "user"]
        quoted = [begun for text, begun in reversed(self._latest) if any(text in user for user in users)]
        alike = [begun for begun in reversed(self._begun.values()) if begun.turns >= LEAST_TURNS and _alike(begun, head, start)]
        if own := [begun for begun in quoted if begun in alike]:
            return self._agent_of(own)
        apart = any(begun.name not in self._sub_agents for begun in quoted)
        return self._agent_of([begun for begun in alike if self._waits(begun.name, step)]) if apart else None

    def replaced(self, head: OpeningDigests, step: int) -> Begun | None:
        """Return the conversation whose history a declared summary replaces. None: there is none.

        It is one under the same system prompt, otherwise any; one that waits for its tools, otherwise the one that was answered last.
        """
        latest = list(reversed(self._begun.values()))
        under = [begun for begun in latest if begun.head[:-1] == head[:-1]] or latest
        return self._agent_of(sorted(under, key=lambda begun: not self._waits(begun.name, step)))

    def _waits(self, name: str, step: int) -> bool:
        """Return whether the agent of a conversation of this step waits for the results of its tools."""
        return self._waiting.get(name) == step

    def _agent_of(self, candidates: Sequence[Begun]) -> Begun | None:
        """Return the first conversation that is not a sub-agent's, otherwise the first. None: there are none."""
        agents = (begun for begun in candidates if begun.name not in self._sub_agents)
        return next(agents, candidates[0] if candidates else None)


def _alike(begun: Begun, head: OpeningDigests, start: Digest) -> bool:
    """Return whether a conversation has this system prompt, and was asked with these tools and options."""
    return begun.head[:-1] == head[:-1] and start in begun.starts


def head_of(messages: Sequence[Message], digests: Sequence[Digest]) -> OpeningDigests:
    """Return the digests of the messages up to and including the first user message."""
    first = next((at for at, message in enumerate(messages) if message.get("role") == "user"), len(messages))
    return tuple(digests[: first + 1])


def name_of(head: OpeningDigests, *, sub_agent: bool) -> str:
    """Return the name of the conversation with this head. Equal heads have equal names, whichever is answered first."""
    return hashlib.blake2b(b"".join(head), digest_size=8, person=b"sub_agent" if sub_agent else b"agent").hexdigest()


def text_of(message: Message) -> str:
    """Return all text of a message."""
    content: Any = message.get("content")
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content or () if isinstance(part, dict))


def system_of(messages: Sequence[Message]) -> str:
    """Return the system prompt of a history. Empty: it has none."""
    return next((text_of(message) for message in messages if message.get("role") in {"system", "developer"}), "")


def beginning_of(text: str) -> str:
    """Return a pattern of the first words of a text."""
    line = text.strip().partition("\n")[0]
    words = line if len(line) <= SIGNATURE_CHARACTERS else line[:SIGNATURE_CHARACTERS].rpartition(" ")[0] or line[:SIGNATURE_CHARACTERS]
    return rf"^\s*{re.escape(words)}".replace("\\ ", " ")
