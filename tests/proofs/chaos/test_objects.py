"""The object store of the storms keeps what every blob store promises, removal included."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from proofs.chaos.objects import environment, object_store
from tests.contract.test_blobs import BlobsContract

from evener.blobs.open import open_blobs
from evener.blobs.port import Blobs
from evener.blobs.store import path_of

pytestmark = pytest.mark.slow  # the store is built from its Go module


class TestS3Blobs(BlobsContract):
    @pytest.fixture
    async def blobs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Blobs]:
        (tmp_path / "objects" / "evener").mkdir(parents=True)
        async with object_store(tmp_path / "objects") as port:
            for name, value in environment(port).items():
                monkeypatch.setenv(name, value)
            yield open_blobs("s3://evener/blobs")

    async def test_objects_are_in_the_bucket(self, blobs: Blobs, tmp_path: Path) -> None:
        """They are nowhere else."""
        ref = await blobs.put(b"ids")
        assert (tmp_path / "objects" / "evener" / "blobs" / path_of(ref.digest)).read_bytes() == b"ids"
