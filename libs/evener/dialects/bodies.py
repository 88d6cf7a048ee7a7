"""Checks request bodies before they are parsed: how much JSON they hold, and whether faults that parsers refuse can be mended. Pure.

A parser, like every call into C, blocks all threads of the process. Therefore bodies are examined in slices, and what would occupy a parser
for long is refused before parsing begins.
"""

import codecs
import json
import re
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evener.dialects.canonical import RequestError

MAX_VALUES: Final = 200_000
"""The limit of members of objects and lists in a request. Hundreds of turns and tools have a few thousand."""
MAX_SLOW_CHARACTERS: Final = 4 << 20
"""The limit of characters that are slow to parse. Longer texts are no prompt, and images contain no such characters."""
FIRST_OF_LETTER: Final = 0xC0
"""The smallest first byte of a character outside ASCII."""
SLICE_BYTES: Final = 1 << 20
ESCAPE: Final = ord("\\")
HALF: Final = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
HIGH: Final = b"89abAB"
"""The third digit of an escaped first half of a surrogate pair."""
REPLACEMENT: Final = b"\\ufffd"


def as_utf8(body: bytes, slice_bytes: int = SLICE_BYTES) -> bytes:
    """Return the body in UTF-8 without a byte-order mark. Raises ValueError if it is in no Unicode encoding."""
    encoding = json.detect_encoding(body)
    if encoding == "utf-8":
        return body
    decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")
    pieces = (decoder.decode(body[low : low + slice_bytes], low + slice_bytes >= len(body)) for low in range(0, len(body), slice_bytes))
    return b"".join([piece.encode("utf-8", "surrogatepass") for piece in pieces])


def check_size(body: bytes) -> None:
    """Refuse a UTF-8 body that holds more than is served, before it is parsed. Raises RequestError."""
    codes = np.frombuffer(body, np.uint8)
    slices = [codes[low : low + SLICE_BYTES] for low in range(0, len(codes), SLICE_BYTES)]
    if sum(int(np.count_nonzero(_separates(one))) for one in slices) > MAX_VALUES and values_in(body) > MAX_VALUES:
        msg = f"the body has more than {MAX_VALUES} JSON values; send fewer messages or tools, or smaller schemas"
        raise RequestError(msg)
    letters = sum(int(np.count_nonzero(one >= FIRST_OF_LETTER)) + int(np.count_nonzero(one == ESCAPE)) for one in slices)
    if letters > MAX_SLOW_CHARACTERS:
        msg = f"the body has more than {MAX_SLOW_CHARACTERS} characters that are escaped or not ASCII; send less text"
        raise RequestError(msg, kind="context_length_exceeded")


def values_in(body: bytes, slice_bytes: int = SLICE_BYTES) -> int:
    """Return how many members the objects and lists of a UTF-8 body have. An empty one counts as one.

    For a body that is not JSON, this is at least the number up to the fault.
    """
    count, inside, rest = 0, False, b""
    for low in range(0, len(body), slice_bytes):
        piece = rest + body[low : low + slice_bytes]
        odd = (len(piece) - len(piece.rstrip(b"\\"))) % 2
        piece, rest = (piece[:-1], piece[-1:]) if odd else (piece, b"")
        codes = np.frombuffer(piece.replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
        if len(codes):
            within = np.logical_xor.accumulate(codes == ord('"')) ^ inside
            count += int(np.count_nonzero(_separates(codes) & ~within))
            inside = bool(within[-1])
    return count


def mended(body: bytes, slice_bytes: int = SLICE_BYTES) -> bytes:
    """Return the body with U+FFFD for each escaped half of a surrogate pair, which harnesses leave when they cut long outputs."""
    made = bytearray(body)
    done = 0
    for begin, end in _halves(body, slice_bytes):
        if begin < done or _is_escaped(body, begin):
            continue
        low = HALF.match(body, end) if body[begin + 3 : begin + 4] in HIGH else None
        if low is not None and body[end + 3 : end + 4] not in HIGH:
            done = low.end()
        else:
            made[begin:end] = REPLACEMENT
    return bytes(made)


def _separates(codes: NDArray[np.uint8]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (codes == ord(",")) | (codes == ord("[")) | (codes == ord("{"))
    return found


def _halves(body: bytes, slice_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of escapes that are, or look like, halves of pairs."""
    for low in range(0, len(body), slice_bytes):
        for found in HALF.finditer(body, low, low + slice_bytes + len(REPLACEMENT)):
            if found.start() < low + slice_bytes:
                yield found.span()


def _is_escaped(body: bytes, at: int) -> bool:
    """Return whether the backslash at `at` is the second of two."""
    before = at
    while before and body[before - 1] == ESCAPE:
        before -= 1
    return (at - before) % 2 == 1
