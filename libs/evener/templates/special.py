"""Converts text to ids, and keeps a template's special tokens apart from the same characters in other texts.

A template mixes its own control tokens with texts of the harness, and a tokenizer cannot tell them apart afterwards: tool output that
spells an end-of-turn token would end the turn. Therefore, before rendering, every such spelling inside the harness's texts gets a sentinel
after its first character: a character that occurs in none of these texts. After rendering, a spelling without the sentinel is the
template's own. The pieces in between are encoded with special tokens turned off.
"""

from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from itertools import chain, pairwise
from typing import Any, Final

import msgspec
from tokenizers import Tokenizer

from evener.runtime.threads import check_wanted
from evener.templates.control import SEARCHED_CHARACTERS, ControlTokens
from evener.templates.port import PromptTooLong, TemplateError

PRIVATE_USE: Final = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE))
"""The ranges that sentinels are taken from: characters without a meaning of their own."""
KEPT_PIECES: Final = 128
KEPT_CHARACTERS: Final = range(1_000, 200_000)
"""The length of a piece whose ids are cached: 50 MB in all at most."""
MAX_IDS: Final = 1 << 20
"""The limit of ids in one text. A longer text is no prompt, and copying its ids would block all threads."""
MAX_CHARACTERS: Final = 8 * MAX_IDS
"""The limit of a rendered text: templates write escapes and blanks around what they are given, some of them for each value."""
FAR: Final = 2
"""A text with this many times the tokens of the longest context is given up before it is encoded whole."""
LEAST_FAR: Final = 1 << 18
"""So many tokens are encoded for any context, in a second or two, so that the harness is told the exact number."""
COUNTED_CHARACTERS: Final = 1 << 16
"""The number of characters whose tokens are counted at once, in a fraction of a second for any text."""
ENCODER_TEXTS: Final = (
    "plain words, 12345 and 3.14159\n",
    "don't we'll I'M\r\n\ttab   spaces \u00a0 no-break  ",
    "\n\n\nnaïve Ünïcödé ﬁn — “quotes” …",
    "中文日本語한국어 ไทยภาษา עברית العربية",
    "😀👩‍👩‍👧‍👦🇺🇳 \u200b\u0000\u0001",
    ' {"a": [1, 2.50, null]} <tag attr="x"/> </div> <| |> [INST]',
    " x",
)
"""Texts on which an encoding is compared with the tokenizer's own."""

_context: Final = ContextVar("longest_context", default=MAX_IDS)
"""The longest context, in tokens, of the engines that may get what is encoded."""
_raws: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class SplitEncoder:
    """A tokenizer that parses special tokens only where the template wrote them. Raises TemplateError if it cannot.

    What is longer than any prompt raises PromptTooLong.
    """

    def __init__(self, tokenizer: Tokenizer, markup: str) -> None:
        """`markup` is the template's source. Ordinary added tokens that it writes (`<tool_call>`) count as special too."""
        added = tokenizer.get_added_tokens_decoder()
        control = {id_: token for id_, token in added.items() if token.special or (len(token.content) > 1 and token.content in markup)}
        if any(len(token.content) == 1 or token.single_word for token in control.values()):
            msg = "a special token of one letter, or one bound to whole words, cannot be told from text"
            raise TemplateError(msg)
        self.control: Final = {token.content: id_ for id_, token in control.items()}
        self._markup = frozenset(markup)
        self._parsing = tokenizer
        self._splitting = _copy(tokenizer, special=frozenset(self.control))
        self._splitting.encode_special_tokens = True
        self._tokens: Final = ControlTokens(control)
        self._kept: Final = lru_cache(KEPT_PIECES)(lambda text: array("i", self.encode_text(text)))
        self._prove()

    def guard(self, value: Any) -> tuple[Any, str]:
        """Return JSON-like `value` with the sentinel inside every spelled special token, and the sentinel ("" if none was needed)."""
        text = "\0".join(texts_in(value))
        if next(self._tokens.spelled(text), None) is None:
            return value, ""
        used = self._markup.union(*(text[low : low + SEARCHED_CHARACTERS] for low in range(0, len(text), SEARCHED_CHARACTERS)))
        sentinel = next((letter for code in chain(*PRIVATE_USE) if (letter := chr(code)) not in used), None)
        if sentinel is None:
            msg = "the texts use all private-use characters, so special tokens in them cannot be marked"
            raise TemplateError(msg)
        return self._mark(value, sentinel), sentinel

    def controls(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield (position, id) of the special tokens in guarded `text`."""
        for begin, _, id_ in self._tokens.written(text):
            yield begin, id_

    def encode(self, text: str, sentinel: str = "", *, again: bool = False) -> list[int]:
        """Return the ids of guarded `text`: special tokens where they stand without the sentinel, ordinary ones elsewhere.

        `again`: the long pieces of the text are expected to come again, as a harness's system message does; the newest are cached.
        """
        if len(text) > MAX_CHARACTERS:
            msg = f"the prompt has {len(text)} characters; at most {MAX_CHARACTERS} are served"
            raise PromptTooLong(msg)
        ids: list[int] = []
        done = 0
        for begin, end, id_ in self._tokens.written(text):
            check_wanted()
            ids += self._plain(text[done:begin], sentinel, again=again)
            ids.append(id_)
            _check_count(len(ids), text)
            done = end
        ids += self._plain(text[done:], sentinel, again=again)
        return ids

    def encode_text(self, text: str) -> list[int]:
        """Return the ids of a text in which nothing is special."""
        check_length(self._splitting, text)
        return ids_of(self._splitting, text)

    def encode_parsed(self, text: str) -> list[int]:
        """Return the ids of a text as the tokenizer itself parses it."""
        return ids_of(self._parsing, text)

    def _plain(self, text: str, sentinel: str, *, again: bool) -> Sequence[int]:
        """Return the ids of guarded text without special tokens of the template."""
        if not text:
            return ()
        plain = text.replace(sentinel, "") if sentinel else text
        return self._kept(plain) if again and len(plain) in KEPT_CHARACTERS else self.encode_text(plain)

    def _mark(self, value: Any, sentinel: str) -> Any:
        if isinstance(value, str):
            cuts = [0, *(begin + 1 for begin in self._tokens.spelled(value)), len(value)]
            return sentinel.join(value[low:high] for low, high in pairwise(cuts))
        if isinstance(value, dict):
            return {self._mark(key, sentinel): self._mark(item, sentinel) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._mark(item, sentinel) for item in value]
        return value

    def _prove(self) -> None:
        """Compare with the tokenizer's own encoding, and check that spelled special tokens stay text."""
        for text in ENCODER_TEXTS:
            for joined in (text, *(f"{spelling}{text}{spelling}{text}" for spelling in self.control)):
                if self.encode(joined) != self.encode_parsed(joined):
                    msg = f"this tokenizer joins across special tokens: {joined[:60]!r} is encoded differently piece by piece"
                    raise TemplateError(msg)
        for spelling, id_ in self.control.items():
            if id_ in self.encode(*self.guard(f"a{spelling}b")):
                msg = f"this tokenizer cannot split {spelling!r} into ordinary tokens"
                raise TemplateError(msg)


@contextmanager
def longest_context(tokens: int | None) -> Iterator[None]:
    """Encode in this block for engines with contexts of at most so many tokens: much longer texts are given up. None: it is not known."""
    before = _context.set(MAX_IDS if tokens is None else min(tokens, MAX_IDS))
    try:
        yield
    finally:
        _context.reset(before)


def check_length(tokenizer: Tokenizer, text: str) -> None:
    """Refuse a text that exceeds the context by far, without encoding all of it. Raises PromptTooLong.

    Its slices are counted until they are too many. A cut word has a few tokens more than a whole one, never twice as many in all.
    """
    if len(text) <= _far():
        return
    count = 0
    for low in range(0, len(text), COUNTED_CHARACTERS):
        check_wanted()
        (encoded,) = tokenizer.encode_batch_fast([text[low : low + COUNTED_CHARACTERS]], add_special_tokens=False)
        count += len(encoded)
        _check_count(count, text)


def _check_count(count: int, text: str) -> None:
    if count > _far():
        limit = _context.get()
        msg = f"this model's maximum context length is {limit} tokens; {len(text)} characters of the prompt have at least {count}"
        raise PromptTooLong(msg, tokens=count, limit=limit)


def _far() -> int:
    return max(FAR * _context.get(), LEAST_FAR)


def ids_of(tokenizer: Tokenizer, text: str, max_ids: int = MAX_IDS) -> list[int]:
    """Return the ids of a text. Raises PromptTooLong if they are too many.

    Only the tokenizer's batch encoding lets other threads run meanwhile.
    """
    (encoded,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
    if len(encoded) > max_ids:
        msg = f"a text of {len(text)} characters has {len(encoded)} tokens; at most {max_ids} are served in one"
        raise PromptTooLong(msg, tokens=len(encoded), limit=max_ids)
    ids: list[int] = encoded.ids
    return ids


def _copy(tokenizer: Tokenizer, special: frozenset[str]) -> Tokenizer:
    """Return the tokenizer with these added tokens marked special, without truncation and padding."""
    data = _raws.decode(tokenizer.to_str())
    added = msgspec.json.decode(data["added_tokens"])
    for token in added:
        token["special"] = token["content"] in special
    data["added_tokens"] = msgspec.Raw(msgspec.json.encode(added))
    data["truncation"] = data["padding"] = msgspec.Raw(b"null")
    return Tokenizer.from_str(msgspec.json.encode(data).decode())


def texts_in(value: Any) -> Iterator[str]:
    """Yield every text of a JSON-like value, including keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        for item in value.values():
            yield from texts_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts_in(item)


def written_characters(value: Any) -> int:
    """Return about how many characters a JSON-like value has as JSON without escapes and blanks."""
    if isinstance(value, str):
        return len(value) + 2
    if isinstance(value, dict):
        return 2 + sum(len(key) + 4 + written_characters(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return 2 + sum(1 + written_characters(item) for item in value)
    return len(str(value))
