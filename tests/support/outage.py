"""A blob store that a test takes away and gives back."""

import asyncio

from evener.blobs.port import Blobs, NotRead, NotStored
from evener.proto.blobs import BlobRef


class Outage:
    """A `Blobs` over another one, away while `away` is set; `silent`: it takes objects and gives none."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self.away = False
        self.silent = False
        self.refused = 0
        """The requests that it got while it was away."""
        self.met = asyncio.Event()
        """Set when that happens; for the test to clear."""

    async def put(self, data: bytes) -> BlobRef:
        if self.away:
            self._meet()
            msg = "the store takes nothing"
            raise NotStored(msg)
        return await self._blobs.put(data)

    async def get(self, ref: BlobRef) -> bytes:
        self._look()
        return await self._blobs.get(ref)

    async def has(self, ref: BlobRef) -> bool:
        if self.away:
            self._look()
        return await self._blobs.has(ref)

    async def remove(self, digest: str, *, unused_seconds: float) -> bool:
        self._look()
        return await self._blobs.remove(digest, unused_seconds=unused_seconds)

    def _look(self) -> None:
        if self.away or self.silent:
            self._meet()
            msg = "the store does not answer"
            raise NotRead(msg)

    def _meet(self) -> None:
        self.refused += 1
        self.met.set()
