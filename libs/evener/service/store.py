"""Whether the blob store can be used now, seen by a blob of this process: its probe. The others of the deployment look for it, too."""

import asyncio
from typing import Final

import structlog

from evener.blobs.port import BlobError, Blobs
from evener.proto.blobs import BlobRef

CHECK_SECONDS: Final = 5.0
"""Between two looks."""
ANSWER_SECONDS: Final = 20.0
"""A store that takes longer cannot be used now; a machine that is merely busy does not."""

log = structlog.get_logger()


class Store:
    """Writes the probe once, and reads it again and again."""

    def __init__(self, blobs: Blobs, boot_id: str) -> None:
        self.probe: BlobRef | None = None
        """None: it could not be written yet."""
        self.usable = True
        """What the last look said."""
        self._blobs = blobs
        self._content = f"evener: process {boot_id} uses this store\n".encode()

    async def look(self) -> None:
        """Write or read the probe now."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                if self.probe is None:
                    self.probe = await self._blobs.put(self._content)
                else:
                    await self._blobs.get(self.probe)
        except (BlobError, TimeoutError) as failed:
            if self.usable:
                log.error("blob_store_unusable", error=str(failed) or f"no answer within {ANSWER_SECONDS:g} s")
            self.usable = False
        else:
            if not self.usable:
                log.info("blob_store_usable_again")
            self.usable = True

    async def watch(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            await self.look()

    async def lacks(self, probe: BlobRef) -> bool:
        """Return whether this store, which can be used, has no such object: whoever wrote it has another. Raises NotRead, TimeoutError."""
        async with asyncio.timeout(ANSWER_SECONDS):
            return not await self._blobs.has(probe)
