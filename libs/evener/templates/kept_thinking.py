"""Keeps all reasoning (`thinking: all`) with a template that strips it from earlier turns.

The template renders each turn with its reasoning if that turn is the last one. This text replaces the turn in the whole text, provided that
both are equal without the reasoning. Otherwise the text stays as the template wrote it.
"""

from collections.abc import Callable, Sequence
from typing import Any

from evener.templates.jinja import ChatTemplate
from evener.templates.parsers import THINK, THOUGHT
from evener.templates.port import TemplateError
from evener.templates.tools import HELLO


class KeptThinking:
    """A chat template whose text keeps all reasoning. It costs a small render for every turn with reasoning."""

    def __init__(self, template: ChatTemplate, turn_end: Callable[[str], int | None]) -> None:
        """`turn_end` returns where the token begins that ends the first turn of a text."""
        self._template = template
        self._turn_end = turn_end
        opened, shut = (template.render([HELLO], None, open_turn=open_turn) for open_turn in (True, False))
        self._header, self._opens, _ = (opened.removeprefix(shut) if opened.startswith(shut) else "").partition(THINK)

    def render(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None, *, open_turn: bool) -> str:
        """Render guarded messages as `ChatTemplate.render` does."""
        text = self._template.render(messages, tools, open_turn=open_turn)
        answers = [message for message in messages if message["role"] == "assistant"]
        if not self._header or not any(self._thought(answer) for answer in answers):
            return text
        head, *turns = text.split(self._header)
        if len(turns) != len(answers) + open_turn:
            return text
        kept = [self._kept(turn, answer) for turn, answer in zip(turns, answers, strict=False)]
        return self._header.join([head, *kept, *turns[len(answers) :]])

    def _kept(self, turn: str, answer: dict[str, Any]) -> str:
        if not self._thought(answer):
            return turn
        try:
            alone = self._template.render([HELLO, answer], None, open_turn=False)
        except TemplateError:
            return turn
        _, *own = alone.split(self._header)
        end, own_end = self._turn_end(turn), self._turn_end(own[-1]) if own else None
        if end is None or own_end is None or without_thought(own[-1][:own_end]) != turn[:end]:
            return turn
        return own[-1][:own_end] + turn[end:]

    def _thought(self, answer: dict[str, Any]) -> bool:
        """Return whether the sampled turn contains reasoning marks, its own or those that the generation prompt opened."""
        return bool(answer.get("reasoning_content") or self._opens)


def without_thought(turn: str) -> str:
    """Return a turn without its first marked reasoning and the white space around it."""
    start = turn.find(THINK)
    stop = turn.find(THOUGHT, start + len(THINK))
    return turn if start < 0 or stop < 0 else turn[:start].rstrip() + turn[stop + len(THOUGHT) :].lstrip()
