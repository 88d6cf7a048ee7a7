"""An attempt that takes more than one program: what it did is judged from outside the sandbox."""

from collections.abc import Awaitable, Callable

from msgspec import Struct
from proofs.escape.backends import BUBBLEWRAP, DOCKER
from proofs.escape.world import World


class Place(Struct, frozen=True, kw_only=True):
    """Where a trial is made."""

    world: World
    kind: str
    """The backend."""
    defended: bool
    """Whether its defence is there. If not, the trial replaces it by something naive."""


class Trial(Struct, frozen=True, kw_only=True):
    """An attempt as a function."""

    name: str
    tried: Callable[[Place], Awaitable[str]]
    """Makes the attempt; returns ESCAPED if it succeeded, otherwise what stood against it."""
    kinds: tuple[str, ...] = (DOCKER, BUBBLEWRAP)
