"""The port of the blob store. Keys are SHA-256 digests; an object is written once and never changes."""

from typing import Protocol

from evener.proto.blobs import BlobRef
from evener.proto.errors import EvenerError, Recoverable


class BlobError(EvenerError):
    """An object is missing, damaged or could not be written. Check the blob store's address, permissions and free space."""


class NotStored(BlobError, Recoverable):
    """The blob store did not take an object. Check its address, permissions and free space, and try again."""


class NotRead(BlobError, Recoverable):
    """The blob store did not return an object that it may have. Check its address and permissions, and try again."""


class NotRemoved(BlobError, Recoverable):
    """The blob store did not remove an object. Check that it may delete objects there, and try again."""


class Blobs(Protocol):
    """A store of objects, keyed by digest."""

    async def put(self, data: bytes) -> BlobRef:
        """Store `data` durably and return its reference. Raises NotStored.

        An object that exists is not written again, but counts as put now. Object stores note this to half an hour (`REFRESH_SECONDS`).
        """
        ...

    async def get(self, ref: BlobRef) -> bytes:
        """Return the object, with size and digest verified. Raises NotRead, and BlobError if the object is missing or damaged."""
        ...

    async def has(self, ref: BlobRef) -> bool:
        """Return whether the object exists. Raises NotRead."""
        ...

    async def remove(self, digest: str, *, unused_seconds: float) -> bool:
        """Remove an object unless it was put within this time; return whether it is gone. Raises NotRemoved.

        An object is put before the record that names it is written: a longer time than that takes keeps what is about to be named.
        """
        ...
