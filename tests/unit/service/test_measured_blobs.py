"""The series of a blob store."""

import pytest
from prometheus_client import CollectorRegistry

from evener.blobs.open import open_blobs
from evener.blobs.port import BlobError
from evener.blobs.store import ref_of
from evener.service.measured_blobs import MeasuredBlobs
from evener.service.telemetry import metrics


async def test_requests_are_counted_with_their_bytes_and_failures() -> None:
    """A request that failed has no time: it would hide how long the others take."""
    registry = CollectorRegistry()
    blobs = MeasuredBlobs(open_blobs("memory://"), metrics(registry))
    ref = await blobs.put(b"ids")
    assert await blobs.get(ref) == b"ids"
    assert await blobs.has(ref)
    with pytest.raises(BlobError):
        await blobs.get(ref_of(b"another"))

    def value(name: str, request: str) -> float | None:
        return registry.get_sample_value(name, {"request": request})

    assert [value("evener_blob_seconds_count", request) for request in ("put", "get", "has")] == [1, 1, 1]
    assert [value("evener_blob_bytes_total", request) for request in ("put", "get")] == [3, 3]
    assert [value("evener_blob_failures_total", request) for request in ("put", "get")] == [0, 1]
