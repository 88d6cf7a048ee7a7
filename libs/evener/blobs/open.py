"""Opens the blob store that a URL names."""

from pathlib import Path
from typing import Final

from obstore.exceptions import BaseError
from obstore.store import MemoryStore, from_url

from evener.blobs.port import Blobs
from evener.blobs.store import LocalBlobs, ObjectBlobs
from evener.proto.errors import ConfigError

MEMORY: Final = "memory://"
REMOTE: Final = ("s3://", "s3a://", "gs://", "az://", "azure://", "abfs://", "abfss://")


def open_blobs(url: str) -> Blobs:
    """Open a folder's path, `memory://`, or s3://, gs://, az:// with a bucket and a prefix.

    Credentials of object stores come from their usual environment variables. Raises ConfigError, BlobError.
    """
    if url == MEMORY:
        return ObjectBlobs(MemoryStore(), url)
    if url.startswith(REMOTE):
        try:
            return ObjectBlobs(from_url(url), url)
        except (BaseError, ValueError) as cause:
            msg = f"blob store {url}: {cause}"
            raise ConfigError(msg) from cause
    if "://" in url:
        msg = f"blob store {url} is neither a folder nor one of {MEMORY}, {', '.join(REMOTE)}"
        raise ConfigError(msg)
    return LocalBlobs(Path(url))
