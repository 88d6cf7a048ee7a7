"""Reads the numbers of messages and tools. Pure.

The limits are the same for sampled calls and for requests, so that every call that is sampled can be sent back.
"""

from typing import Final

MAX_DIGITS: Final = 100
"""The limit of an integer's digits. Reading and writing one takes the square of its digits, in which no other thread runs."""
MAX_FLOAT: Final = 1000
"""The limit of the characters of a number with a fraction or an exponent. No number needs as many, also written out without an exponent."""


def read_integer(digits: str) -> int:
    """Return the integer in a JSON text. Raises ValueError if it is too long."""
    if len(digits) > MAX_DIGITS:
        msg = f"an integer has more than {MAX_DIGITS} digits"
        raise ValueError(msg)
    return int(digits)


def read_float(digits: str) -> float:
    """Return the number with a fraction or an exponent in a JSON text, perhaps infinite. Raises ValueError if it is too long."""
    if len(digits) > MAX_FLOAT:
        msg = f"a number has more than {MAX_FLOAT} characters"
        raise ValueError(msg)
    return float(digits)
