"""Tells which tasks need the same sandbox, so that one that was prepared for one of them serves the others too."""

import hashlib
from pathlib import Path
from typing import Final

import msgspec
from msgspec import structs

from evener.proto.sandbox import ImageBuild, SandboxSpec
from evener.tasks.pack import archive_of

DIGEST_DIGITS: Final = 32


def sandbox_digest(spec: SandboxSpec) -> str:
    """Return the digest of a task's requirements: the same for all tasks that the same sandbox serves. Raises OSError. Blocks.

    Of an image that is built the files count, not where they are.
    """
    if isinstance(spec.image, ImageBuild):
        files = hashlib.sha256(archive_of(Path(spec.image.context))).hexdigest()
        spec = structs.replace(spec, image=structs.replace(spec.image, context=files))
    return hashlib.sha256(msgspec.msgpack.encode(spec)).hexdigest()[:DIGEST_DIGITS]
