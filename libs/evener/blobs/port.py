"""The blob store's port. Keys are SHA-256 digests; an object is written once and never changed."""

from typing import Protocol

from evener.proto.blobs import BlobRef
from evener.proto.errors import EvenerError, Recoverable


class BlobError(EvenerError):
    """An object is missing, damaged or could not be written. Check the blob store's address, rights and free space."""


class NotStored(BlobError, Recoverable):
    """The blob store did not take an object. Check its address, rights and free space, and send it again."""


class NotRead(BlobError, Recoverable):
    """The blob store did not give an object that it may have. Check its address and rights, and ask again."""


class Blobs(Protocol):
    """Bytes by digest."""

    async def put(self, data: bytes) -> BlobRef:
        """Store `data` durably and return its reference; what is there already is not written again. Raises NotStored."""
        ...

    async def get(self, ref: BlobRef) -> bytes:
        """Return the object, its size and digest verified. Raises NotRead, and BlobError for one that is missing or damaged."""
        ...

    async def has(self, ref: BlobRef) -> bool:
        """Return whether the object is there. Raises NotRead."""
        ...
