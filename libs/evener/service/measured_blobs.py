"""The blob store of a process, with series of its requests."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from evener.blobs.port import Blobs
from evener.proto.blobs import BlobRef
from evener.service.telemetry import Metrics


class MeasuredBlobs:
    """A `Blobs` that counts its requests, their times, their bytes and their failures."""

    def __init__(self, blobs: Blobs, metrics: Metrics) -> None:
        self._blobs = blobs
        self._metrics = metrics

    async def put(self, data: bytes) -> BlobRef:
        with self._measured("put"):
            ref = await self._blobs.put(data)
        self._metrics.blob_bytes.labels("put").inc(len(data))
        return ref

    async def get(self, ref: BlobRef) -> bytes:
        with self._measured("get"):
            data = await self._blobs.get(ref)
        self._metrics.blob_bytes.labels("get").inc(len(data))
        return data

    async def has(self, ref: BlobRef) -> bool:
        with self._measured("has"):
            return await self._blobs.has(ref)

    async def remove(self, digest: str, *, unused_seconds: float) -> bool:
        with self._measured("remove"):
            return await self._blobs.remove(digest, unused_seconds=unused_seconds)

    @contextmanager
    def _measured(self, request: str) -> Iterator[None]:
        began = time.perf_counter()
        with self._metrics.blob_failures.labels(request).count_exceptions():
            yield
        self._metrics.blob_seconds.labels(request).observe(time.perf_counter() - began)
