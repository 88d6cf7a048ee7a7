"""Bulk fields hold either bytes or a reference to the blob store.

A record above 256 KiB moves its largest bulk fields to the blob store. The blob is written before the record that names it.
"""

from typing import Annotated, Final

from msgspec import Meta, Struct

INLINE_LIMIT_BYTES: Final = 256 * 1024
"""The encoded size above which a record moves its largest bulk fields to the blob store."""

Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$", description="SHA-256, lower-case hexadecimal.")]


class BlobRef(Struct, frozen=True, kw_only=True):
    """A content-addressed object in the blob store, written before the record that names it. Readers verify its size and digest."""

    digest: Sha256
    size: int
    """The size in bytes."""


Bulk = bytes | BlobRef
"""The bytes, or a reference to the blob that holds them. `evener.blobs` moves and fetches blobs; all other code sees bytes."""
