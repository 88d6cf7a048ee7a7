"""A blob store whose outages are waited out. The one rule: what follows a stream waits as long as it takes, what answers somebody is told.

A service hands its readers and writers of the log a `Waited` without a limit: a record whose blob cannot be had now is as good as one
that was not written yet, so its reader stands still before it. Endpoints get one with a limit, and answer 503 after it. Only an
object that is missing or damaged in a store that answers is an error of its own.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import structlog

from evener.blobs.port import BlobError, Blobs
from evener.proto.blobs import BlobRef
from evener.proto.errors import Recoverable

FIRST_PAUSE_SECONDS: Final = 0.2
LONGEST_PAUSE_SECONDS: Final = 5.0
TOLD_SECONDS: Final = 30.0
"""A store that stays away is told so often."""
ANSWER_SECONDS: Final = 5.0
"""The limit of endpoints."""
MISSING_PAUSES_SECONDS: Final = (0.2, 0.4, 0.8, 1.6)
"""After an object that is missing or damaged; after the last one it stays so. A shared folder may show a file late."""

T = TypeVar("T")

log = structlog.get_logger()


class Waited:
    """A `Blobs` that asks again while the store is away. Cancelling ends a wait."""

    def __init__(self, blobs: Blobs, seconds: float = math.inf, *, put_seconds: float | None = None) -> None:
        """`seconds`: a store that has been away for longer is an error at once, for whoever asks then. `put_seconds`: of `put` alone."""
        self._blobs = blobs
        self._seconds = seconds
        self._put_seconds = seconds if put_seconds is None else put_seconds
        self._away_since = 0.0
        self._failed_at = -math.inf
        """The last failure, while there was no success after it."""
        self._told_at = -math.inf

    async def put(self, data: bytes) -> BlobRef:
        """Store `data`. Raises NotStored after the limit."""
        return await self._waited(lambda: self._blobs.put(data), self._put_seconds)

    async def get(self, ref: BlobRef) -> bytes:
        """Return the object. Raises NotRead after the limit, and BlobError for one that is missing or damaged."""
        for pause in MISSING_PAUSES_SECONDS:
            try:
                return await self._waited(lambda: self._blobs.get(ref), self._seconds)
            except BlobError as error:
                if isinstance(error, Recoverable):
                    raise
                log.warning("blob_not_fetched", error=str(error), pause_seconds=pause)
            await asyncio.sleep(pause)
        return await self._waited(lambda: self._blobs.get(ref), self._seconds)

    async def has(self, ref: BlobRef) -> bool:
        """Return whether the object is there. Raises NotRead after the limit."""
        return await self._waited(lambda: self._blobs.has(ref), self._seconds)

    async def _waited(self, ask: Callable[[], Awaitable[T]], seconds: float) -> T:
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                answer = await ask()
            except Recoverable as away:
                if self._note(away) >= seconds:
                    raise
            else:
                self._came_back()
                return answer
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _note(self, error: Recoverable) -> float:
        """Take note of a failure; return for how long the store has been away. Between two failures far apart nobody knows."""
        now = time.monotonic()
        if now - self._failed_at > 2 * LONGEST_PAUSE_SECONDS:
            self._away_since = now
        self._failed_at = now
        if now - self._told_at >= TOLD_SECONDS:
            self._told_at = now
            log.warning("blob_store_away", error=str(error), seconds=round(now - self._away_since, 1))
        return now - self._away_since

    def _came_back(self) -> None:
        if self._failed_at > -math.inf:
            log.info("blob_store_back", seconds=round(time.monotonic() - self._away_since, 1))
            self._failed_at = self._told_at = -math.inf
