"""Items of request bodies (messages, contents, input items), parsed once however often a growing history repeats them. Pure.

A harness sends its whole history with every call. Cutting a body into raw items and hashing them is cheap; parsing is not. So
parsed items are kept by their raw JSON, a bounded number of bytes of it, the oldest dropped first.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec

from evener.dialects.bodies import values_in
from evener.dialects.fields import as_list, read_raw, refuse

MOST_BYTES: Final = 64 << 20
"""What one cache holds at most: raw JSON, and what is made of it."""
PARSED_BYTES: Final = 2048
"""What a parsed item weighs at least."""
VALUE_BYTES: Final = 128
"""What each value in it weighs at most, its letters apart."""
LETTER_BYTES: Final = 4
"""What a letter takes at most: all of a text, where one of them is no common one."""
MOST_ITEM_BYTES: Final = 256 << 10
"""A larger item is parsed each time."""
MOST_ITEMS: Final = 20_000
"""More messages, or tools, are no request of a harness."""

Parsed = TypeVar("Parsed")

_raws: Final = msgspec.json.Decoder(list[msgspec.Raw] | None)


class Items(Generic[Parsed]):
    """Parses items with `parse(value, path)`, which looks at nothing but the item: equal JSON gives an equal result.

    Threads may share one: large bodies are read in threads of their own.
    """

    def __init__(self, parse: Callable[[Any, str], Parsed], *, most_bytes: int = MOST_BYTES) -> None:
        self._parse = parse
        self._most_bytes = most_bytes
        self._kept: OrderedDict[bytes, Parsed] = OrderedDict()  # a dict takes ever longer to find its oldest entry
        self._bytes = 0
        self._keeping = threading.Lock()

    def of(self, raw: bytes | msgspec.Raw, path: str) -> list[Parsed]:
        """Return the parsed items of a raw JSON list (null: none). Raises RequestError naming the place (`messages[3].content`)."""
        try:
            raws: Sequence[msgspec.Raw] = _raws.decode(raw) or ()
        except msgspec.MsgspecError:
            as_list(read_raw(raw, path), path)
            raise
        if len(raws) > MOST_ITEMS:
            refuse(path, f"has {len(raws)} items; at most {MOST_ITEMS} are served")
        return [self._one(bytes(item), path, index) for index, item in enumerate(raws)]

    def _one(self, raw: bytes, path: str, index: int) -> Parsed:
        at = f"{path}[{index}]"
        if len(raw) > MOST_ITEM_BYTES:
            return self._parse(read_raw(raw, at), at)
        known = self._kept.get(raw)
        if known is None:
            known = self._parse(read_raw(raw, at), at)
            self._keep(raw, known)
        return known

    def _keep(self, raw: bytes, parsed: Parsed) -> None:
        with self._keeping:
            if raw in self._kept:  # another thread was faster
                return
            self._kept[raw] = parsed
            self._bytes += _weight(raw)
            while self._bytes > self._most_bytes:
                oldest, _ = self._kept.popitem(last=False)
                self._bytes -= _weight(oldest)


def _weight(raw: bytes) -> int:
    letter = 1 if raw.isascii() and b"\\u" not in raw else LETTER_BYTES
    return PARSED_BYTES + (1 + letter) * len(raw) + VALUE_BYTES * (values_in(raw) + raw.count(b":"))
