"""Objects that a store does not give although it gives others: after a while they count as damaged, and until then they are named."""

import math
import time
from collections.abc import Awaitable, Callable
from typing import Final

import structlog
from msgspec import Struct

from evener.blobs.port import BlobError

FORGOTTEN_SECONDS: Final = 60.0
"""An object that nobody asks for is forgotten after this time, or after the one in which it would count as damaged."""

log = structlog.get_logger()


class _Failing(Struct):
    since: float
    """The monotonic time of its first failure."""
    last: float
    """The monotonic time of its last failure."""
    error: str


class FailingObjects:
    """The objects that all readers of a process could not read for a while. A success ends it, and so does an outage of the store."""

    def __init__(self, sound: Callable[[], Awaitable[bool]], sound_since: Callable[[], float], seconds: float) -> None:
        """`sound` asks the store whether it holds what this process wrote; `sound_since` is the monotonic time since when it did so.

        `seconds`: an object that cannot be read for so long, from a store that is sound for so long, counts as damaged.
        """
        self.sound = sound
        self._sound_since = sound_since
        self._seconds = seconds
        self._forgotten_seconds = max(seconds, FORGOTTEN_SECONDS)
        self._failing: dict[str, _Failing] = {}

    def was_read(self, digest: str) -> None:
        """Note that an object could be read."""
        if self._failing.pop(digest, None) is not None:
            log.info("blob_read_again", digest=digest)

    async def is_lost(self, digest: str, error: BlobError) -> bool:
        """Note that an object could not be read; return whether it counts as damaged."""
        now = time.monotonic()
        failing = self._failing.get(digest)
        if failing is None or now - failing.last > self._forgotten_seconds:
            log.warning("blob_not_read", digest=digest, error=str(error))
            failing = self._failing[digest] = _Failing(now, now, "")
        failing.last, failing.error = now, str(error.args[0])
        return self._seconds_of(failing) >= self._seconds and await self.sound()

    def warnings(self) -> tuple[str, ...]:
        """Return a sentence for each object that cannot be read now in a store that is sound."""
        now = time.monotonic()
        self._failing = {digest: one for digest, one in self._failing.items() if now - one.last <= self._forgotten_seconds}
        return tuple(
            f"blob {digest} could not be read for {self._seconds_of(one):.0f} s ({one.error}); after {self._seconds:.0f} s the records "
            "that need it become dead letters"
            for digest, one in self._failing.items()
            if self._sound_since() < math.inf
        )

    def _seconds_of(self, failing: _Failing) -> float:
        """Return for how long the object has not been read while the store was sound. Minus infinity: it is not."""
        return time.monotonic() - max(failing.since, self._sound_since())
