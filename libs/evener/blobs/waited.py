"""A blob store that waits out its outages. One rule decides how long: readers of a stream wait as long as it takes, endpoints report.

A service gives its readers and writers of the log a `Waited` without a limit: a record whose blob is unavailable is treated like one that
was not written yet, and its reader waits. Endpoints get a `Waited` with a limit, and answer 503 after it. Only an object that is missing or
damaged in a store that answers is an error of its own.
"""

import asyncio
import math
from itertools import islice
from typing import Final

import structlog
from msgspec import Struct

from evener.blobs.port import BlobError, Blobs
from evener.proto.blobs import BlobRef
from evener.proto.errors import Recoverable
from evener.runtime.retry import PAUSES, Backoff, Dependency

log = structlog.get_logger()


class BlobTimings(Struct, frozen=True, kw_only=True):
    """How long a blob store is waited for."""

    away: Backoff = PAUSES
    """The pauses between requests while the store is away."""
    missing: Backoff = Backoff(0.2, 1.6)
    """The pauses before a missing or damaged object is requested again: a shared folder may show a file late."""
    missing_tries: int = 5
    """After this many requests the object counts as missing."""
    answer_seconds: float = 5.0
    """The limit for endpoints."""


TIMINGS: Final = BlobTimings()


class Waited:
    """A `Blobs` that tries again while the store is unavailable. Cancellation ends a wait."""

    def __init__(
        self, blobs: Blobs, seconds: float = math.inf, *, put_seconds: float | None = None, timings: BlobTimings = TIMINGS
    ) -> None:
        """`seconds`: after an outage of this length, requests fail at once. `put_seconds`: the same for `put` alone."""
        self._blobs = blobs
        self._seconds = seconds
        self._put_seconds = seconds if put_seconds is None else put_seconds
        self._timings = timings
        self._store = Dependency("blob_store", timings.away)

    async def put(self, data: bytes) -> BlobRef:
        """Store `data`. Raises NotStored after the limit."""
        return await self._store.ask(lambda: self._blobs.put(data), self._put_seconds)

    async def get(self, ref: BlobRef) -> bytes:
        """Return the object. Raises NotRead after the limit, and BlobError if the object is missing or damaged."""
        for pause in islice(self._timings.missing, self._timings.missing_tries - 1):
            try:
                return await self._store.ask(lambda: self._blobs.get(ref), self._seconds)
            except BlobError as error:
                if isinstance(error, Recoverable):
                    raise
                log.warning("blob_not_fetched", error=str(error), pause_seconds=pause)
            await asyncio.sleep(pause)
        return await self._store.ask(lambda: self._blobs.get(ref), self._seconds)

    async def has(self, ref: BlobRef) -> bool:
        """Return whether the object exists. Raises NotRead after the limit."""
        return await self._store.ask(lambda: self._blobs.has(ref), self._seconds)

    async def remove(self, digest: str, *, unused_seconds: float) -> bool:
        """Remove an object unless somebody put it within `unused_seconds`; return whether it is gone. Raises NotRemoved after the limit."""
        return await self._store.ask(lambda: self._blobs.remove(digest, unused_seconds=unused_seconds), self._seconds)
