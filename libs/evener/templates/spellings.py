"""Which parser reads a policy's answers."""

from collections.abc import Callable
from typing import Final, Literal

from evener.templates import calls
from evener.templates.harmony import Harmony
from evener.templates.parsers import THINK, Parser, Tagged

ToolParser = Literal["auto", "hermes", "functions", "keys", "json", "deepseek", "harmony", "none"]
CALLS: Final[dict[str, Callable[[], calls.Calls]]] = {
    "hermes": calls.hermes,
    "functions": calls.functions,
    "keys": calls.keys,
    "json": calls.WholeJson,
    "deepseek": calls.deepseek,
}
WRITTEN: Final = (
    ("<|call|>", "harmony"),
    (calls.DEEPSEEK, "deepseek"),
    ("<function=", "functions"),
    ("<arg_key>", "keys"),
    (calls.HERMES, "hermes"),
    (calls.PYTHON, "json"),
)
"""What a template's source writes, and the spelling that it shows; the first counts."""


def spelling_of(template: str) -> str:
    """Return the name of the spelling that a template's source shows."""
    return next((spelling for mark, spelling in WRITTEN if mark in template), "none")


def parser_for(template: str, spelling: str, *, thinking: bool) -> Parser:
    """Return the parser of a template's answers. `thinking`: its generation prompt opens the reasoning."""
    if spelling == "harmony":
        return Harmony()
    made = CALLS.get(spelling)
    return Tagged(calls=None if made is None else made(), thinks=THINK in template, thinking=thinking)
