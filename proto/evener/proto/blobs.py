"""Bulk fields: bytes in the record, or a reference to the blob store.

A record above 256 KiB moves its largest bulk fields to the blob store first (object first, then the record that names it).
"""

from typing import Annotated, Final

from msgspec import Meta, Struct

INLINE_LIMIT_BYTES: Final = 256 * 1024
"""Encoded size above which a record moves its largest bulk fields to the blob store."""

Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$", description="SHA-256, lower-case hexadecimal.")]


class BlobRef(Struct, frozen=True, kw_only=True):
    """A content-addressed object in the blob store, written before the record that names it. Readers verify size and digest."""

    digest: Sha256
    size: int
    """Bytes."""


Bulk = bytes | BlobRef
"""Bytes, or where they were moved to. `evener.blobs` moves and fetches them; everything else sees bytes."""
