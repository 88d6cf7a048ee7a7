"""Sampled text to reasoning, content and tool calls. Pure.

A family spells reasoning and calls in its own way; what is not a whole, valid call stays text: the harness sees what the model
wrote. Every parser also tells what no later text can change (`certain`), for streaming.
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from evener.templates.calls import Calls, Found, without_beginning_of
from evener.templates.port import Message

THINK, THOUGHT = "<think>", "</think>"


class Answer(Struct, frozen=True, kw_only=True):
    """What an answer says."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[Found, ...] = ()


class Parser(Protocol):
    """How a policy's template spells answers."""

    @property
    def reads_reasoning(self) -> bool:
        """Whether any answer can have reasoning."""
        ...

    def parse(self, text: str, *, end: str, tools: Sequence[Message]) -> Answer:
        """Return what an answer's text says; `end` is its end-of-turn token (not in `text`), "" where it was cut."""
        ...

    def certain(self, text: str) -> tuple[str, str]:
        """Return beginnings of reasoning and content that hold for every answer that begins with `text`.

        Content only where no reasoning can follow: dialects send reasoning first.
        """
        ...

    def reasoning_spans(self, text: str) -> list[tuple[int, int]]:
        """Return where reasoning stands in `text`, its markers included, as [start, end) in letters."""
        ...


class Tagged(Struct, frozen=True, kw_only=True):
    """Reasoning in `<think>` before the answer, tool calls as marked blocks in it. Most families."""

    calls: Calls | None
    thinks: bool
    """Reasoning stands in `<think>`."""
    thinking: bool = False
    """The generation prompt opens the reasoning, so that an answer begins inside it."""

    @property
    def reads_reasoning(self) -> bool:
        return self.thinks

    def parse(self, text: str, *, end: str, tools: Sequence[Message]) -> Answer:
        del end
        start, stop, after = self._reasoning(text)
        reasoning = text[start:stop].strip("\n")
        content = text[after:].lstrip("\n") if after else text
        calls: tuple[Found, ...] = ()
        if self.calls is not None:
            content, calls = self.calls.split(content, tools)
        return Answer(reasoning=reasoning if reasoning.strip() else "", content=content, calls=calls)

    def certain(self, text: str) -> tuple[str, str]:
        if self.thinks and THINK.startswith(text.lstrip()):
            return "", ""
        start, stop, after = self._reasoning(text)
        closed = stop < after
        reasoning = (text[start:stop] if closed else without_beginning_of(THOUGHT, text[start:stop])).strip("\n")
        if after and not closed:
            return (reasoning if reasoning.strip() else ""), ""
        content = text[after:].lstrip("\n") if after else text
        return (reasoning if reasoning.strip() else ""), (content if self.calls is None else self.calls.certain(content))

    def reasoning_spans(self, text: str) -> list[tuple[int, int]]:
        _, _, after = self._reasoning(text)
        return [(0, after)] if after else []

    def _reasoning(self, text: str) -> tuple[int, int, int]:
        """Return where the reasoning begins and ends, and where the rest begins: 0, 0, 0 if there is none. Unfinished, it has no rest."""
        begin = len(text) - len(text.lstrip())
        if self.thinks and text.startswith(THINK, begin):
            start = begin + len(THINK)
        elif self.thinks and self.thinking:
            start = 0
        else:
            return 0, 0, 0
        stop = text.find(THOUGHT, start)
        return (start, len(text), len(text)) if stop < 0 else (start, stop, stop + len(THOUGHT))
