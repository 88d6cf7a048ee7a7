"""The gateway's threads, for what grows with a request or an answer."""

from typing import Final

from evener.service.off_loop import Threads

READING: Final = Threads("read", 2)
"""Bodies of requests are parsed here."""
PLACING: Final = Threads("place", 4)
"""Histories are read, rendered and encoded here, answers parsed, rows cut. A session keeps one of these busy at most."""
SHORT_BYTES: Final = 16 << 10
"""What is done to so few bytes, or tokens, takes a millisecond or two: the loop does it itself."""
