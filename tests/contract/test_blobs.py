"""What every blob store promises, on a folder and on obstore."""

import abc
import asyncio
import os
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from obstore.store import S3Store
from prometheus_client import CollectorRegistry
from tests.support.loop import turns

from evener.blobs.open import open_blobs
from evener.blobs.port import BlobError, Blobs, NotRead, NotStored
from evener.blobs.store import HASHED_AT_ONCE_BYTES, ObjectBlobs, path_of, ref_of
from evener.proto.blobs import BlobRef
from evener.proto.errors import ConfigError
from evener.service.measured_blobs import MeasuredBlobs
from evener.service.telemetry import metrics

GENEROUS_SECONDS = 120.0
HANGS = """
import asyncio, os, pathlib, sys
from evener.blobs.open import open_blobs
from evener.blobs.store import path_of
async def main():
    blobs = open_blobs(sys.argv[1])
    ref = await blobs.put(b"sampled")
    path = pathlib.Path(sys.argv[1]) / path_of(ref.digest)
    path.unlink()
    os.mkfifo(path)
    try:
        await asyncio.wait_for(blobs.get(ref), 0.5)
    except TimeoutError:
        return
    sys.exit(3)
asyncio.run(main())
"""
"""A program whose read of an object hangs when it ends."""


class BlobsContract(abc.ABC):
    """A subclass only says how to open one."""

    @pytest.fixture
    @abc.abstractmethod
    def blobs(self, tmp_path: Path) -> Blobs: ...

    async def test_object_comes_back_by_its_reference(self, blobs: Blobs) -> None:
        """The reference is the SHA-256 and the size, nothing that the store made up."""
        for data in (b"", b"ids", bytes(3_000_000)):
            ref = await blobs.put(data)
            assert ref == ref_of(data)
            assert await blobs.get(ref) == data
            assert await blobs.has(ref)

    async def test_the_same_bytes_are_stored_once(self, blobs: Blobs) -> None:
        """Also when many put them at the same time."""
        refs = await asyncio.gather(*(blobs.put(b"tools" * 1000) for _ in range(20)))
        assert set(refs) == {ref_of(b"tools" * 1000)}
        assert await blobs.get(refs[0]) == b"tools" * 1000

    async def test_missing_object_is_named(self, blobs: Blobs) -> None:
        """An operator can look for it."""
        ref = ref_of(b"never put")
        assert not await blobs.has(ref)
        with pytest.raises(BlobError, match=f"{ref.digest} is not in"):
            await blobs.get(ref)

    async def test_object_of_another_size_than_its_reference_is_refused(self, blobs: Blobs) -> None:
        """A reference is a promise about the bytes."""
        ref = await blobs.put(b"abc")
        with pytest.raises(BlobError, match="damaged"):
            await blobs.get(BlobRef(digest=ref.digest, size=4))

    async def test_object_is_removed_unless_it_was_put_a_moment_ago(self, blobs: Blobs) -> None:
        """An object that is put after its removal is there again; removing a missing object is no error."""
        ref = await blobs.put(b"ids")
        assert not await blobs.remove(ref.digest, unused_seconds=3600.0)
        assert await blobs.get(ref) == b"ids"
        assert await blobs.remove(ref.digest, unused_seconds=0.0)
        assert not await blobs.has(ref)
        assert await blobs.remove(ref.digest, unused_seconds=0.0)
        await blobs.put(b"ids")
        assert await blobs.get(ref) == b"ids"


class TestLocalBlobs(BlobsContract):
    @pytest.fixture
    def blobs(self, tmp_path: Path) -> Blobs:
        return open_blobs(str(tmp_path / "blobs"))

    async def test_damaged_file_is_never_handed_out(self, blobs: Blobs, tmp_path: Path) -> None:
        """Same size, other bytes: only the digest tells."""
        ref = await blobs.put(b"sampled")
        (tmp_path / "blobs" / path_of(ref.digest)).write_bytes(b"sampleD")
        with pytest.raises(BlobError, match="damaged"):
            await blobs.get(ref)

    async def test_cut_file_is_written_again(self, blobs: Blobs, tmp_path: Path) -> None:
        """What a broken disk left in part does not pass for being there."""
        ref = await blobs.put(b"sampled")
        (tmp_path / "blobs" / path_of(ref.digest)).write_bytes(b"sam")
        assert not await blobs.has(ref)
        await blobs.put(b"sampled")
        assert await blobs.get(ref) == b"sampled"

    async def test_folder_holds_objects_and_nothing_else(self, blobs: Blobs, tmp_path: Path) -> None:
        """No temporary file is left, and a path follows from the digest alone."""
        refs = [await blobs.put(b"%d" % number) for number in range(20)]
        found = {str(path.relative_to(tmp_path / "blobs")) for path in (tmp_path / "blobs").rglob("*") if path.is_file()}
        assert found == {path_of(ref.digest) for ref in refs}

    async def test_object_that_is_put_again_counts_as_put_now(self, blobs: Blobs, tmp_path: Path) -> None:
        """Two runs share it, and one of them is deleted while the other begins."""
        ref = await blobs.put(b"task")
        os.utime(tmp_path / "blobs" / path_of(ref.digest), (0, 0))
        await blobs.put(b"task")
        assert not await blobs.remove(ref.digest, unused_seconds=3600.0)

        os.utime(tmp_path / "blobs" / path_of(ref.digest), (0, 0))
        assert await blobs.remove(ref.digest, unused_seconds=3600.0)
        assert [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()] == []

    async def test_removal_that_was_broken_off_loses_nothing(self, blobs: Blobs, tmp_path: Path) -> None:
        """Its process died with the object aside."""
        ref = await blobs.put(b"task")
        path = tmp_path / "blobs" / path_of(ref.digest)
        path.rename(path.with_name(f".removing-{ref.digest}"))
        assert not await blobs.remove(ref.digest, unused_seconds=3600.0)
        assert await blobs.get(ref) == b"task"

    async def test_object_whose_read_hangs_keeps_no_other_from_being_read(self, blobs: Blobs, tmp_path: Path) -> None:
        """Each retry took another thread, until the process had none left. Now the retries wait for the first read, and get its result."""
        ref, other = await blobs.put(b"sampled"), await blobs.put(b"other")
        path = tmp_path / "blobs" / path_of(ref.digest)
        path.unlink()
        os.mkfifo(path)
        given_up = [asyncio.ensure_future(blobs.get(ref)) for _ in range(100)]
        await turns()
        async with asyncio.timeout(GENEROUS_SECONDS):
            assert await blobs.get(other) == b"other"
        for task in given_up:
            task.cancel()
        await asyncio.wait(given_up)
        reading = asyncio.ensure_future(blobs.get(ref))
        await turns()
        await asyncio.to_thread(path.write_bytes, b"sampled")

        assert await reading == b"sampled"

    @pytest.mark.parametrize("asked", ["put", "remove"])
    async def test_change_that_hangs_keeps_no_object_from_being_read(
        self, blobs: Blobs, monkeypatch: pytest.MonkeyPatch, asked: str
    ) -> None:
        """Each retry took another thread. The retries wait for the first one, and it is done once."""
        ref, go_on, hung = await blobs.put(b"there"), threading.Event(), list[object]()

        def hang(*given: object) -> None:
            hung.append(given)
            assert go_on.wait(GENEROUS_SECONDS)

        def ask() -> "asyncio.Future[object]":
            return asyncio.ensure_future(blobs.put(b"new") if asked == "put" else blobs.remove(ref.digest, unused_seconds=0.0))

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync" if asked == "put" else "rename", hang)
            given_up = [ask() for _ in range(100)]
            await turns()
            async with asyncio.timeout(GENEROUS_SECONDS):
                assert await blobs.get(ref) == b"there"
            for task in given_up:
                task.cancel()
            await asyncio.wait(given_up)
            again = ask()
            await turns()
            assert len(hung) == 1
        go_on.set()

        assert await again in {ref_of(b"new"), True}

    async def test_process_ends_while_a_read_hangs(self, tmp_path: Path) -> None:
        """Or a service that is told to stop would stay until it is killed."""
        program = await asyncio.create_subprocess_exec(sys.executable, "-c", HANGS, str(tmp_path))
        async with asyncio.timeout(GENEROUS_SECONDS):
            assert await program.wait() == 0

    async def test_folder_that_cannot_be_written_is_named(self, tmp_path: Path) -> None:
        """One line: which folder, and what is wrong with it."""
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(BlobError, match="blob folder"):
            open_blobs(str(tmp_path / "file" / "blobs"))


class TestMeasuredBlobs(BlobsContract):
    @pytest.fixture
    def blobs(self, tmp_path: Path) -> Blobs:
        return MeasuredBlobs(open_blobs(str(tmp_path / "blobs")), metrics(CollectorRegistry()))


class CountingThreads(ThreadPoolExecutor):
    """The threads of a loop, which count what they are given."""

    works = 0

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        self.works += 1
        return super().submit(*args, **kwargs)


class TestMemoryBlobs(BlobsContract):
    @pytest.fixture
    def blobs(self, tmp_path: Path) -> Blobs:
        del tmp_path
        return open_blobs("memory://")

    async def test_loop_continues_while_a_large_object_is_hashed(self, blobs: Blobs) -> None:
        """A task of 50 MB took 50 ms for each look."""
        threads = CountingThreads()
        asyncio.get_running_loop().set_default_executor(threads)
        await blobs.get(await blobs.put(bytes(HASHED_AT_ONCE_BYTES)))
        assert threads.works == 0
        await blobs.get(await blobs.put(bytes(HASHED_AT_ONCE_BYTES + 1)))
        assert threads.works == 2


def test_unknown_kind_of_store_is_refused_by_name() -> None:
    """A typing mistake is an error at start, not a folder called `ftp:`."""
    with pytest.raises(ConfigError, match="ftp://host"):
        open_blobs("ftp://host")


def test_object_stores_open_without_being_asked_anything() -> None:
    """A bucket's URL is enough; credentials come from the environment."""
    for url in ("s3://bucket/evener", "gs://bucket/evener"):
        assert open_blobs(url)


async def test_folder_without_room_may_have_some_later(tmp_path: Path) -> None:
    """What the disk refuses is worth another try; a damaged object is not."""
    blobs = open_blobs(str(tmp_path / "blobs"))
    (tmp_path / "blobs").rmdir()
    (tmp_path / "blobs").write_text("in the way")

    with pytest.raises(NotStored, match="was not written to"):
        await blobs.put(b"data")


async def test_folder_that_is_away_says_nothing_of_its_objects(tmp_path: Path) -> None:
    """A disk that is not mounted has lost nothing: what it holds is there again when it is."""
    blobs = open_blobs(str(tmp_path / "blobs"))
    ref = await blobs.put(b"data")
    (tmp_path / "blobs").rename(tmp_path / "elsewhere")

    for ask in (blobs.get(ref), blobs.has(ref)):
        with pytest.raises(NotRead, match="blob folder"):
            await ask
    (tmp_path / "elsewhere").rename(tmp_path / "blobs")
    assert await blobs.get(ref) == b"data"


async def test_object_store_that_does_not_answer_may_answer_later() -> None:
    """Nothing listens there: each way of asking says so as what may pass, also the look before an object is written."""
    store = S3Store(
        "bucket",
        endpoint="http://127.0.0.1:1",
        client_options={"allow_http": True},
        skip_signature=True,
        region="local",
        retry_config={"max_retries": 0},
    )
    blobs = ObjectBlobs(store, "s3://bucket")

    for ask in (blobs.get(ref_of(b"data")), blobs.has(ref_of(b"data"))):
        with pytest.raises(NotRead):
            await ask
    with pytest.raises(NotStored):
        await blobs.put(b"data")
