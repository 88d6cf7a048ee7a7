"""Checks whether the blob store can be used, by a blob that this process writes: its probe, for which other processes look too."""

import asyncio
import math
import time
from typing import Final

import structlog

from evener.blobs.port import BlobError, Blobs
from evener.proto.blobs import BlobRef

STORE_CHECK_SECONDS: Final = 5.0
"""The interval of the checks."""
STORE_ANSWER_SECONDS: Final = 20.0
"""A store that takes longer counts as unusable. On a machine that is merely busy it does not take that long."""

log = structlog.get_logger()


class Store:
    """Writes the probe once, and reads it repeatedly."""

    def __init__(self, blobs: Blobs, boot_id: str) -> None:
        self.probe: BlobRef | None = None
        """The probe. None: it could not be written yet."""
        self.usable_since = time.monotonic()
        """The monotonic time of the first check after which all went well. Infinity: the last one did not."""
        self._blobs = blobs
        self._content = f"evener: process {boot_id} uses this store\n".encode()

    @property
    def usable(self) -> bool:
        """Whether the last check went well."""
        return self.usable_since < math.inf

    async def look(self) -> None:
        """Write or read the probe now."""
        try:
            async with asyncio.timeout(STORE_ANSWER_SECONDS):
                if self.probe is None:
                    self.probe = await self._blobs.put(self._content)
                else:
                    await self._blobs.get(self.probe)
        except (BlobError, TimeoutError) as failed:
            if self.usable:
                log.error("blob_store_unusable", error=str(failed) or f"no answer within {STORE_ANSWER_SECONDS:g} s")
            self.usable_since = math.inf
        else:
            if not self.usable:
                log.info("blob_store_usable_again")
                self.usable_since = time.monotonic()

    async def holds_ours(self) -> bool:
        """Look now; return whether the store holds what this process wrote."""
        await self.look()
        return self.usable

    async def watch(self) -> None:
        """Check the store at intervals, for ever."""
        while True:
            await asyncio.sleep(STORE_CHECK_SECONDS)
            await self.look()

    async def lacks(self, probe: BlobRef) -> bool:
        """Return whether this store is usable and lacks the object, so that its writer uses another store. Raises NotRead, TimeoutError."""
        async with asyncio.timeout(STORE_ANSWER_SECONDS):
            return not await self._blobs.has(probe)
