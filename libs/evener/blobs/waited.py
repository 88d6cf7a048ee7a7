"""A blob store that waits out its outages. One rule decides how long: readers of a stream wait as long as it takes, endpoints report.

A service gives its readers and writers of the log a `Waited` without a limit: a record whose blob is unavailable is treated like one that
was not written yet, and its reader waits. Endpoints get a `Waited` with a limit, and answer 503 after it. Only an object that is missing or
damaged in a store that answers, and that holds what this process wrote, is an error of its own.
"""

import asyncio
import math
from collections.abc import Awaitable
from itertools import islice
from typing import Final, TypeVar

import structlog
from msgspec import Struct

from evener.blobs.failing import FailingObjects
from evener.blobs.port import BlobError, Blobs, NotRead, NotRemoved, NotStored
from evener.proto.blobs import BlobRef
from evener.proto.errors import Recoverable
from evener.runtime.backoff import Backoff
from evener.runtime.retry import PAUSES, Dependency

log = structlog.get_logger()


class BlobTimings(Struct, frozen=True, kw_only=True):
    """How long a blob store is waited for."""

    away: Backoff = PAUSES
    """The pauses between requests while the store is away."""
    missing: Backoff = Backoff(0.2, 1.6)
    """The pauses before a missing or damaged object is requested again: a shared folder may show a file late."""
    missing_tries: int = 5
    """The number of requests after which the object counts as missing."""
    answer_seconds: float = 5.0
    """The limit for endpoints."""
    lost_seconds: float = 600.0
    """An object that a usable store does not give for so long counts as damaged."""
    hang_seconds: float = 20.0
    """A request that takes longer, and a second more for each MB, counts as failed."""


BLOB_TIMINGS: Final = BlobTimings()
BYTES_A_SECOND: Final = 1e6
"""The additional time that a slow store gets for large objects."""

T = TypeVar("T")


class Waited:
    """A `Blobs` that tries again while the store is unavailable. Cancellation ends a wait."""

    def __init__(
        self,
        blobs: Blobs,
        seconds: float = math.inf,
        *,
        put_seconds: float | None = None,
        timings: BlobTimings = BLOB_TIMINGS,
        failing: FailingObjects | None = None,
    ) -> None:
        """`seconds`: after an outage of this length, requests fail at once. `put_seconds`: the same for `put` alone.

        `failing` knows whether the store still holds what this process wrote. One that does not (a folder that is not mounted, a bucket
        that is gone) is away, whatever it says of other objects. None: nobody knows, and an object that cannot be read is waited for.
        """
        self._blobs = blobs
        self._seconds = seconds
        self._put_seconds = seconds if put_seconds is None else put_seconds
        self._timings = timings
        self._failing = failing
        self._store = Dependency("blob_store", timings.away)

    async def put(self, data: bytes) -> BlobRef:
        """Store `data`. Raises NotStored after the limit."""
        return await self._store.ask(lambda: self._in_time(self._blobs.put(data), NotStored, len(data)), self._put_seconds)

    async def get(self, ref: BlobRef) -> bytes:
        """Return the object. Raises NotRead after the limit, and BlobError if the object is missing or damaged."""
        for pause in islice(self._timings.missing, self._timings.missing_tries - 1):
            try:
                return await self._store.ask(lambda: self._get(ref), self._seconds)
            except BlobError as error:
                if isinstance(error, Recoverable):
                    raise
                log.warning("blob_not_fetched", error=str(error), pause_seconds=pause)
            await asyncio.sleep(pause)
        return await self._store.ask(lambda: self._get(ref), self._seconds)

    async def has(self, ref: BlobRef) -> bool:
        """Return whether the object exists. Raises NotRead after the limit."""
        return await self._store.ask(lambda: self._in_time(self._blobs.has(ref), NotRead), self._seconds)

    async def remove(self, digest: str, *, unused_seconds: float) -> bool:
        """Remove an object unless somebody put it within `unused_seconds`; return whether it is gone. Raises NotRemoved after the limit."""
        return await self._store.ask(
            lambda: self._in_time(self._blobs.remove(digest, unused_seconds=unused_seconds), NotRemoved), self._seconds
        )

    async def _get(self, ref: BlobRef) -> bytes:
        try:
            data = await self._in_time(self._blobs.get(ref), NotRead, ref.size)
        except NotRead as failed:
            if self._failing is not None and await self._failing.is_lost(ref.digest, failed):
                msg = f"{failed.args[0]}, for {self._timings.lost_seconds:.0f} s, while the store gave other objects"
                raise BlobError(msg) from failed
            raise
        except BlobError as missing:
            if self._failing is not None and not await self._failing.sound():
                msg = f"{missing.args[0]}, and neither is what this process wrote: is it mounted, and is its bucket there?"
                raise NotRead(msg) from missing
            data = await self._in_time(self._blobs.get(ref), NotRead, ref.size)  # the store may have come back between the two
        if self._failing is not None:
            self._failing.was_read(ref.digest)
        return data

    async def _in_time(self, asked: Awaitable[T], error: type[BlobError], size: int = 0) -> T:
        seconds = self._timings.hang_seconds + size / BYTES_A_SECOND
        try:
            async with asyncio.timeout(seconds):
                return await asked
        except TimeoutError as cause:
            msg = f"the blob store did not answer within {seconds:.0f} s"
            raise error(msg) from cause
