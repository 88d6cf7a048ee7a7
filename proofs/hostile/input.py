"""What an input is, and what may come of it. The inputs themselves stand in the modules beside this one, one a kind."""

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from proofs.hostile.running import Site


class Kind(StrEnum):
    """What is hostile about an input."""

    BODIES = "bodies"
    NUMBERS = "numbers"
    HTTP = "http"
    STREAMS = "streams"
    HARNESS = "harness"
    FILES = "files"
    REWARDS = "rewards"
    NAMES = "names"
    TIMES = "times"
    ARCHIVES = "archives"
    CONTROL = "control"
    OUTAGES = "outages"
    STARTS = "starts"


class Unexpected(Exception):
    """What came of an input is not what should: the message says what came."""


class Input(Struct, frozen=True, kw_only=True, eq=False):
    """One hostile act upon a running Evener."""

    kind: Kind
    name: str
    act: "Callable[[Site], Awaitable[None]]"
    """Does it, and raises Unexpected where the answer or the end is not one that is right."""
    seconds: float = 20.0
    """What takes longer hangs."""
    review: str = ""
    """The section of the first audit that it is from. Empty: it is another one."""
    timed: bool = True
    """How long the loop stops counts. Not where the input is an Evener of its own."""
