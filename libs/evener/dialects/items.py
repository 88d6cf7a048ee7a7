"""Parses items of request bodies (messages, contents, input items) once, however often a growing history repeats them. Pure.

A harness sends its whole history with every call. Splitting a body into raw items and hashing them is cheap; parsing is not. Therefore
parsed items are cached by their raw JSON, up to a number of bytes, and the oldest are dropped first.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec

from evener.dialects.bodies import values_in
from evener.dialects.fields import as_list, read_raw, refuse

MAX_CACHE_BYTES: Final = 64 << 20
"""The limit of one cache: raw JSON and its parsed form together."""
PARSED_BYTES: Final = 2048
"""The least weight of a parsed item."""
VALUE_BYTES: Final = 128
"""The largest weight of each value in it, without its characters."""
LETTER_BYTES: Final = 4
"""The largest weight of a character. One uncommon character makes all characters of a text that wide."""
TEXTS_OF_JSON: Final = (b'"arguments"', b'"input"')
"""Fields whose text may be parsed too: an item with one is weighed as if its texts were JSON."""
MAX_ITEM_BYTES: Final = 256 << 10
"""Larger items are not cached."""
MAX_ITEMS: Final = 20_000
"""The limit of messages or tools. No harness sends more."""

Parsed = TypeVar("Parsed")

_raws: Final = msgspec.json.Decoder(list[msgspec.Raw] | None)


class Items(Generic[Parsed]):
    """Parses items with `parse(value, path)`, which depends on nothing but the item, so that equal JSON gives an equal result.

    Threads may share an instance: large bodies are read in threads of their own.
    """

    def __init__(self, parse: Callable[[Any, str], Parsed], *, max_bytes: int = MAX_CACHE_BYTES) -> None:
        self._parse = parse
        self._max_bytes = max_bytes
        self._kept: OrderedDict[bytes, Parsed] = OrderedDict()  # a dict takes ever longer to find its oldest entry
        self._bytes = 0
        self._keeping = threading.Lock()

    def of(self, raw: bytes | msgspec.Raw, path: str) -> list[Parsed]:
        """Return the parsed items of a raw JSON list (null: none). Raises RequestError naming the path (`messages[3].content`)."""
        try:
            raws: Sequence[msgspec.Raw] = _raws.decode(raw) or ()
        except msgspec.MsgspecError:
            as_list(read_raw(raw, path), path)
            raise
        if len(raws) > MAX_ITEMS:
            refuse(path, f"has {len(raws)} items; at most {MAX_ITEMS} are served")
        return [self._one(bytes(item), path, index) for index, item in enumerate(raws)]

    def _one(self, raw: bytes, path: str, index: int) -> Parsed:
        is_kept = len(raw) <= MAX_ITEM_BYTES
        known = self._kept.get(raw) if is_kept else None
        if known is None:
            at = f"{path}[{index}]"
            known = self._parse(read_raw(raw, at), at)
            if is_kept:
                self._keep(raw, known)
        return known

    def _keep(self, raw: bytes, parsed: Parsed) -> None:
        with self._keeping:
            if raw in self._kept:  # another thread was faster
                return
            self._kept[raw] = parsed
            self._bytes += _weight(raw)
            while self._bytes > self._max_bytes:
                oldest, _ = self._kept.popitem(last=False)
                self._bytes -= _weight(oldest)


def _weight(raw: bytes) -> int:
    letter = 1 if raw.isascii() and b"\\u" not in raw else LETTER_BYTES
    values = sum(map(raw.count, (b",", b"[", b"{"))) if any(name in raw for name in TEXTS_OF_JSON) else values_in(raw)
    return PARSED_BYTES + (1 + letter) * len(raw) + VALUE_BYTES * (values + raw.count(b":"))
