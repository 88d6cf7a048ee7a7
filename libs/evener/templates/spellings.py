"""Chooses the parser of a policy's answers."""

from typing import Final

from evener.templates import calls
from evener.templates.harmony import Harmony
from evener.templates.parsers import THINK, AnswerParser, Tagged

WRITTEN: Final = (
    ("<|call|>", "harmony"),
    (calls.DEEPSEEK, "deepseek"),
    ("<function=", "functions"),
    ("<arg_key>", "keys"),
    (calls.HERMES, "hermes"),
    (calls.PYTHON_TAG, "json"),
)
"""Pieces of a template's source, and the spelling that each reveals. The first match counts."""


def spelling_of(template: str) -> str:
    """Return the name of the spelling that a template's source reveals."""
    return next((spelling for mark, spelling in WRITTEN if mark in template), "none")


def parser_for(template: str, spelling: str, *, thinking: bool) -> AnswerParser:
    """Return the parser of a template's answers. `thinking`: the generation prompt opens the reasoning."""
    if spelling == "harmony":
        return Harmony()
    return Tagged(calls=calls.CALL_FORMATS.get(spelling), thinks=THINK in template, thinking=thinking)
