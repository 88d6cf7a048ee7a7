"""Finds control tokens that are spelled in texts.

A search runs in C and blocks all threads of the process, so long texts are searched in slices.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from tokenizers import AddedToken

NEVER: Final = "(?!)"
"""A pattern that matches nothing."""
SEARCHED_CHARACTERS: Final = 1 << 18
"""The number of characters searched at once, which takes a few milliseconds for any text."""
_SPACE: Final = re.compile(r"\s*")


class ControlTokens:
    """Finds spellings of control tokens."""

    def __init__(self, tokens: Mapping[int, AddedToken]) -> None:
        self._named = {token.content: (id_, token) for id_, token in tokens.items()}
        spellings = sorted(map(re.escape, self._named), key=len, reverse=True)
        self._genuine = re.compile("|".join(spellings) or NEVER)
        self._spelled = re.compile(f"(?={self._genuine.pattern})")
        self._longest = max(map(len, self._named), default=0)

    def spelled(self, text: str) -> Iterator[int]:
        """Yield where each spelling begins, including those inside others."""
        for low in range(0, len(text), SEARCHED_CHARACTERS):
            for found in self._spelled.finditer(text, low, low + SEARCHED_CHARACTERS + self._longest):
                if found.start() < low + SEARCHED_CHARACTERS:
                    yield found.start()

    def written(self, text: str) -> Iterator[tuple[int, int, int]]:
        """Yield (begin, end, id) of the tokens as a tokenizer parses them: in sequence, with the white space that they swallow."""
        end = 0
        while (found := self._next(text, end)) is not None:
            id_, token = self._named[found[0]]
            begin = end + len(text[end : found.start()].rstrip()) if token.lstrip else found.start()
            end = found.end()
            if token.rstrip and (space := _SPACE.match(text, end)):
                end = space.end()
            yield begin, end, id_

    def _next(self, text: str, at: int) -> re.Match[str] | None:
        for low in range(at, len(text), SEARCHED_CHARACTERS):
            found = self._genuine.search(text, low, low + SEARCHED_CHARACTERS + self._longest)
            if found is not None and found.start() < low + SEARCHED_CHARACTERS:
                return found
        return None
