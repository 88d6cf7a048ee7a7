"""A prompt as the rules of a script see it. Pure."""

from collections.abc import Sequence
from functools import cached_property
from typing import Final

from tokenizers import Tokenizer

from evener.templates.parsers import THINK

THINK_CHARACTERS: Final = 16


class Prompt:
    """A prompt that is decoded as far as the rules need."""

    def __init__(self, ids: list[int], tokenizer: Tokenizer, header: Sequence[int]) -> None:
        """`header`: the ids that open every answer. The first of them only opens turns."""
        self._ids: Final = ids
        self._tokenizer: Final = tokenizer
        self._header: Final = list(header)

    def tail(self, characters: int) -> str:
        """Return the last characters, 0 for all."""
        if not characters:
            return self.text
        count = characters // 2 + 8
        while True:
            text = self._decode(self._ids[-count:])
            if count >= len(self._ids) or len(text) > characters:  # more than asked: the first may be half a character
                return text[-characters:]
            count *= 2

    @cached_property
    def text(self) -> str:
        """The whole text of the prompt."""
        return self._decode(self._ids)

    @cached_property
    def answers(self) -> int:
        """The number of earlier answers: every header but the last, which asks for this answer."""
        first, found, at = self._header[0], 0, -1
        try:
            while True:
                at = self._ids.index(first, at + 1)
                found += self._ids[at : at + len(self._header)] == self._header
        except ValueError:
            return max(found - 1, 0)

    @property
    def thinking(self) -> bool:
        """Whether the prompt ends inside opened reasoning."""
        return self.tail(THINK_CHARACTERS).rstrip().endswith(THINK)

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)
