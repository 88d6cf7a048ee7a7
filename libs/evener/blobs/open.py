"""Opens the blob store that a URL names."""

from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from obstore.exceptions import BaseError
from obstore.store import MemoryStore, from_url

from evener.blobs.port import Blobs
from evener.blobs.store import LocalBlobs, ObjectBlobs
from evener.proto.errors import ConfigError

MEMORY: Final = "memory://"
RETRIES: Final[Any] = {"max_retries": 3, "retry_timeout": timedelta(seconds=10)}
"""The retries of one request. obstore's own 10 in 3 minutes would hide an outage from services that must report it."""
REMOTE: Final = ("s3://", "s3a://", "gs://", "az://", "azure://", "abfs://", "abfss://")


def open_blobs(url: str) -> Blobs:
    """Open the blob store in a folder, in `memory://`, or in s3://, gs://, az:// with a bucket and a prefix.

    The usual environment variables hold the credentials of object stores. Raises ConfigError, BlobError.
    """
    if url == MEMORY:
        return ObjectBlobs(MemoryStore(), url)
    if url.startswith(REMOTE):
        try:
            return ObjectBlobs(from_url(url, retry_config=RETRIES), url)
        except (BaseError, ValueError) as cause:
            msg = f"blob store {url}: {cause}"
            raise ConfigError(msg) from cause
    if "://" in url:
        msg = f"blob store {url} is neither a folder nor one of {MEMORY}, {', '.join(REMOTE)}"
        raise ConfigError(msg)
    return LocalBlobs(Path(url))
