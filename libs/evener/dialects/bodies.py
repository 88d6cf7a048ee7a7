"""Bodies of requests before they are parsed: how much JSON is in one, and what parsers refuse in one that can be mended. Pure.

A parser, like every step in C, keeps all threads of the process waiting. So bodies are looked at slice by slice, and what would take a
parser long is refused before it begins.
"""

import codecs
import json
import re
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evener.dialects.canonical import RequestError

MOST_VALUES: Final = 200_000
"""Members of objects and lists in a request: hundreds of turns and tools have a few thousand."""
MOST_LETTERS: Final = 4 << 20
"""Letters that cost a parser most: longer texts are no prompt, and images have none."""
FIRST_OF_LETTER: Final = 0xC0
"""The first byte of a letter that is no ASCII is not below."""
SLICE: Final = 1 << 20
ESCAPE: Final = ord("\\")
HALF: Final = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
HIGH: Final = b"89abAB"
"""The third letter of a first half."""
REPLACEMENT: Final = b"\\ufffd"


def as_utf8(body: bytes) -> bytes:
    """Return the body in UTF-8, without a byte-order mark. Raises ValueError where it is in no Unicode encoding."""
    encoding = json.detect_encoding(body)
    if encoding == "utf-8":
        return body
    decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")
    pieces = (decoder.decode(body[low : low + SLICE], low + SLICE >= len(body)) for low in range(0, len(body), SLICE))
    return b"".join([piece.encode("utf-8", "surrogatepass") for piece in pieces])


def check_size(body: bytes) -> None:
    """Refuse a UTF-8 body with more in it than is served, before anything is parsed. Raises RequestError."""
    codes = np.frombuffer(body, np.uint8)
    slices = [codes[low : low + SLICE] for low in range(0, len(codes), SLICE)]
    if sum(int(np.count_nonzero(_separates(one))) for one in slices) > MOST_VALUES and values_in(body) > MOST_VALUES:
        msg = f"the body has more than {MOST_VALUES} JSON values; send fewer messages or tools, or smaller schemas"
        raise RequestError(msg)
    letters = sum(int(np.count_nonzero(one >= FIRST_OF_LETTER)) + int(np.count_nonzero(one == ESCAPE)) for one in slices)
    if letters > MOST_LETTERS:
        msg = f"the body has more than {MOST_LETTERS} letters that are escaped or no ASCII; send less text"
        raise RequestError(msg, kind="context_length_exceeded")


def values_in(body: bytes) -> int:
    """Return how many members the objects and lists of a UTF-8 body have, an empty one counted as one.

    Of a body that is no JSON: at least as many as it has up to there.
    """
    count, inside, rest = 0, False, b""
    for low in range(0, len(body), SLICE):
        piece = rest + body[low : low + SLICE]
        odd = (len(piece) - len(piece.rstrip(b"\\"))) % 2
        piece, rest = (piece[:-1], piece[-1:]) if odd else (piece, b"")
        codes = np.frombuffer(piece.replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
        if len(codes):
            within = np.logical_xor.accumulate(codes == ord('"')) ^ inside
            count += int(np.count_nonzero(_separates(codes) & ~within))
            inside = bool(within[-1])
    return count


def mended(body: bytes) -> bytes:
    """Return the body with U+FFFD for each escaped half of a surrogate pair: harnesses that cut long outputs leave them."""
    made = bytearray(body)
    done = 0
    for begin, end in _halves(body):
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


def _halves(body: bytes) -> Iterator[tuple[int, int]]:
    """Yield where escapes begin and end that are halves of pairs, or look so."""
    for low in range(0, len(body), SLICE):
        for found in HALF.finditer(body, low, low + SLICE + len(REPLACEMENT)):
            if found.start() < low + SLICE:
                yield found.span()


def _is_escaped(body: bytes, at: int) -> bool:
    """Return whether the backslash at `at` is the second of two."""
    before = at
    while before and body[before - 1] == ESCAPE:
        before -= 1
    return (at - before) % 2 == 1
