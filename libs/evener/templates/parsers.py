"""Parses sampled text into reasoning, content and tool calls. Pure.

Each family spells reasoning and calls in its own way. An incomplete or invalid call stays text, so that the harness sees what the model
wrote. For streaming, every parser also tells what no later text can change (`certain`).
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from evener.templates.calls import Found, ToolCallFormat, without_beginning_of
from evener.tokens.digests import Message

THINK, THOUGHT = "<think>", "</think>"


class ParsedAnswer(Struct, frozen=True, kw_only=True):
    """The parsed parts of an answer."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[Found, ...] = ()


class AnswerParser(Protocol):
    """How a policy's template spells answers."""

    @property
    def reads_reasoning(self) -> bool:
        """Whether an answer can have reasoning."""
        ...

    def parse(self, text: str, *, end: str, tools: Sequence[Message]) -> ParsedAnswer:
        """Return the parsed answer. `end` is its end-of-turn token (not in `text`), "" if the answer was cut."""
        ...

    def certain(self, text: str) -> tuple[str, str]:
        """Return prefixes of reasoning and content that hold for every answer that begins with `text`.

        There is content only if no reasoning can follow, because dialects send reasoning first.
        """
        ...

    def reasoning_spans(self, text: str) -> list[tuple[int, int]]:
        """Return where the reasoning stands in `text`, markers included, as character ranges [start, end)."""
        ...


class Tagged(Struct, frozen=True, kw_only=True):
    """Reasoning in `<think>` before the answer, and tool calls as marked blocks in it. Most families use this."""

    calls: ToolCallFormat | None
    thinks: bool
    """Whether `<think>` marks reasoning."""
    thinking: bool = False
    """Whether the generation prompt opens the reasoning, so that an answer begins inside it."""

    @property
    def reads_reasoning(self) -> bool:
        return self.thinks

    def parse(self, text: str, *, end: str, tools: Sequence[Message]) -> ParsedAnswer:
        del end
        start, stop, after = self._reasoning(text)
        reasoning = text[start:stop].strip("\n")
        content = text[after:].lstrip("\n") if after else text
        calls: tuple[Found, ...] = ()
        if self.calls is not None:
            content, calls = self.calls.split(content, tools)
        return ParsedAnswer(reasoning=reasoning if reasoning.strip() else "", content=content, calls=calls)

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
        """Return where the reasoning begins and ends, and where the rest begins: 0, 0, 0 without reasoning, no rest if it is unfinished."""
        begin = len(text) - len(text.lstrip())
        if self.thinks and text.startswith(THINK, begin):
            start = begin + len(THINK)
        elif self.thinks and self.thinking:
            start = 0
        else:
            return 0, 0, 0
        stop = text.find(THOUGHT, start)
        return (start, len(text), len(text)) if stop < 0 else (start, stop, stop + len(THOUGHT))
