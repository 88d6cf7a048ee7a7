"""Regular expressions that tasks and quirks bring along. Compiling one is limited, and so is a search: the texts are those of models.

Nothing compiles a pattern while it is decoded: who takes one in checks it, in a thread.
"""

from functools import lru_cache
from typing import Final

import regex

from evener.proto.errors import EvenerError
from evener.proto.pattern_cost import check_cost

SECONDS: Final = 2.0
"""The limit of one search in one text, in seconds of the process's CPU time."""


class BadPattern(EvenerError):
    """Correct the regular expression; its syntax is that of Python's `re`."""


class SlowPattern(EvenerError):
    """Make the regular expression simpler: repetitions inside repetitions can take exponential time."""


class TextPattern:
    """A regular expression, in the syntax of Python's `re`. Its searches release the GIL."""

    def __init__(self, pattern: str, *, ignore_case: bool = False) -> None:
        """Raise BadPattern if it is not a regular expression, or too much work to compile."""
        try:
            check_cost(pattern)
            self._compiled = regex.compile(pattern, regex.IGNORECASE if ignore_case else 0)
        except (regex.error, RecursionError, OverflowError, ValueError) as cause:
            msg = f"not a regular expression that can be used: {cause}: {pattern[:100]!r}"
            raise BadPattern(msg) from cause

    def occurs_in(self, text: str) -> bool:
        """Return whether some part of the text matches. Raises SlowPattern."""
        try:
            return self._compiled.search(text, timeout=SECONDS, concurrent=True) is not None
        except TimeoutError as cause:
            raise self._slow(text) from cause

    def cut(self, text: str) -> tuple[str, list[str]]:
        """Return the text without what matches, and the parts that were cut. Raises SlowPattern."""
        try:
            found = [match[0] for match in self._compiled.finditer(text, timeout=SECONDS, concurrent=True)]
            return (
                (self._compiled.sub("", text, timeout=SECONDS, concurrent=True), [part for part in found if part]) if found else (text, [])
            )
        except TimeoutError as cause:
            raise self._slow(text) from cause

    def _slow(self, text: str) -> SlowPattern:
        return SlowPattern(f"the search for {self._compiled.pattern[:100]!r} in {len(text)} characters took more than {SECONDS:g} s")


@lru_cache(maxsize=1024)
def text_pattern(pattern: str, *, ignore_case: bool = False) -> TextPattern:
    """Return a pattern, compiled once. Raises BadPattern. Takes up to some 50 ms the first time: call it in a thread."""
    return TextPattern(pattern, ignore_case=ignore_case)
