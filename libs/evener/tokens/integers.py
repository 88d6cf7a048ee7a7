"""Reads the integers of messages and tools. Pure."""

from typing import Final

MAX_DIGITS: Final = 100
"""The limit of an integer's digits. Reading and writing one takes the square of its digits, in which no other thread runs.

It is the same for sampled calls and for requests, so that every call that is sampled can be sent back.
"""


def read_integer(digits: str) -> int:
    """Return the integer in a JSON text. Raises ValueError if it is too long."""
    if len(digits) > MAX_DIGITS:
        msg = f"an integer has more than {MAX_DIGITS} digits"
        raise ValueError(msg)
    return int(digits)
