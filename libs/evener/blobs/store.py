"""Objects by digest: in a local folder, in memory, or in an object store by obstore.

An object named `abcdef...` is stored as `ab/abcdef...`, so that no folder grows too large for a file system or an object store.
"""

import asyncio
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import obstore
from msgspec import Struct
from obstore.exceptions import BaseError, NotFoundError

from evener.blobs.port import BlobError, NotRead, NotRemoved, NotStored
from evener.proto.blobs import BlobRef
from evener.runtime.threads import LeftBehindThreads

HASHED_AT_ONCE_BYTES: Final = 64 << 10
"""Data up to this size is hashed at once, in a tenth of a millisecond; larger data is hashed in a thread."""
BLOB_THREADS: Final = 32
"""The requests of a folder at a time: the other objects can be read until so many hang."""
REFRESH_SECONDS: Final = 1800.0
"""An object of an object store that is put again after this time is written again, so that the store knows that it is in use."""

K = TypeVar("K")
P = ParamSpec("P")
T = TypeVar("T")


def ref_of(data: bytes) -> BlobRef:
    """Return the reference of an object: its SHA-256 and its size in bytes."""
    return BlobRef(digest=hashlib.sha256(data).hexdigest(), size=len(data))


def path_of(digest: str) -> str:
    """Return the object's path in its store."""
    return f"{digest[:2]}/{digest}"


def verified(data: bytes, ref: BlobRef) -> bytes:
    """Return `data`. Raises BlobError unless its size and digest are those of the reference."""
    if ref_of(data) != ref:
        msg = f"blob {ref.digest} is damaged: {len(data)} bytes, {ref.size} expected"
        raise BlobError(msg)
    return data


class _Asked(Struct, eq=False):
    """A request for an object, which may hang."""

    job: "Future[Any]"
    waiting: int = 0
    """How many wait for it."""


class LocalBlobs:
    """A folder of objects. Files are written here and not by obstore, which does not sync: an event must never outlive its object."""

    def __init__(self, folder: Path) -> None:
        """Create the folder if it is missing. Raises BlobError."""
        self._folder = folder
        self._threads = LeftBehindThreads("blobs", BLOB_THREADS)
        self._asked: dict[tuple[object, object], _Asked] = {}
        """The open requests, by kind and object. A caller with the same request waits for the same thread."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as cause:
            msg = f"blob folder {folder}: {cause.strerror}"
            raise BlobError(msg) from cause

    async def put(self, data: bytes) -> BlobRef:
        ref = ref_of(data) if len(data) <= HASHED_AT_ONCE_BYTES else await asyncio.to_thread(ref_of, data)
        await self._once(self._put, ref, data)
        self._asked.pop((self._get, ref), None)  # which may find it missing
        return ref

    async def get(self, ref: BlobRef) -> bytes:
        return await self._once(self._get, ref)

    async def has(self, ref: BlobRef) -> bool:
        with self._reading("was not looked up"):
            return await self._once(self._has, ref)

    async def remove(self, digest: str, *, unused_seconds: float) -> bool:
        return await self._once(self._remove, digest, unused_seconds)

    async def _once(self, work: Callable[Concatenate[K, P], T], about: K, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what `work` returns. Work that goes on for the same object is joined; a cancelled caller leaves it to the next one.

        Work for which nobody waits any more is dropped if it has no thread yet.
        """
        kind = (work, about)
        if (asked := self._asked.get(kind)) is None:
            asked = self._asked[kind] = _Asked(self._threads.begin(work, about, *args, **kwargs))
            asked.job.add_done_callback(lambda _: self._asked.pop(kind, None))
        asked.waiting += 1
        try:
            answer: T = await asyncio.shield(asyncio.wrap_future(asked.job))
        finally:
            asked.waiting -= 1
            if not asked.waiting:
                asked.job.cancel()
        return answer

    def _put(self, ref: BlobRef, data: bytes) -> None:
        path = self._folder / path_of(ref.digest)
        try:
            if not (self._has(ref) and _touched(path)):
                path.parent.mkdir(exist_ok=True)
                _write(path, data)
                _sync_folder(self._folder)
            # also if the object exists: its writer may not have reached this line yet
            _sync_folder(path.parent)
        except OSError as cause:
            msg = f"blob of {ref.size} bytes was not written to {self._folder}: {cause.strerror}"
            raise NotStored(msg) from cause

    def _get(self, ref: BlobRef) -> bytes:
        with self._reading(f"did not give blob {ref.digest}"):
            try:
                data = (self._folder / path_of(ref.digest)).read_bytes()
            except FileNotFoundError as cause:
                self._folder.stat()
                msg = f"blob {ref.digest} is not in {self._folder}"
                raise BlobError(msg) from cause
        return verified(data, ref)

    def _has(self, ref: BlobRef) -> bool:
        """Return whether the file exists. Raises OSError if the folder itself is missing."""
        try:
            return (self._folder / path_of(ref.digest)).stat().st_size == ref.size
        except FileNotFoundError:
            self._folder.stat()
            return False

    def _remove(self, digest: str, unused_seconds: float) -> bool:
        path = self._folder / path_of(digest)
        aside = path.with_name(f".removing-{digest}")
        try:
            self._folder.stat()
            if aside.exists() and not path.exists():  # of a process that died between the two lines below
                aside.rename(path)
            path.rename(aside)  # so that a later put writes it again
            if time.time() - aside.stat().st_mtime < unused_seconds:
                aside.rename(path)
                return False
            aside.unlink()
        except FileNotFoundError:
            return True
        except OSError as cause:
            msg = f"blob {digest} was not removed from {self._folder}: {cause.strerror}"
            raise NotRemoved(msg) from cause
        return True

    @contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as cause:
            msg = f"blob folder {self._folder} {what}: {cause.strerror}"
            raise NotRead(msg) from cause


class ObjectBlobs:
    """An obstore store: memory, S3, GCS, Azure. An object is as durable as the store makes it."""

    def __init__(self, store: Any, name: str) -> None:
        """Use `store`, which errors call `name`."""
        self._store = store
        self._name = name

    async def put(self, data: bytes) -> BlobRef:
        ref = ref_of(data) if len(data) <= HASHED_AT_ONCE_BYTES else await asyncio.to_thread(ref_of, data)
        try:
            if not await self._has(ref, newer_than=time.time() - REFRESH_SECONDS):
                await obstore.put_async(self._store, path_of(ref.digest), data)
        except (BaseError, OSError) as cause:
            msg = f"blob of {ref.size} bytes was not written to {self._name}: {cause}"
            raise NotStored(msg) from cause
        return ref

    async def get(self, ref: BlobRef) -> bytes:
        try:
            found = await obstore.get_async(self._store, path_of(ref.digest))
            data = await found.bytes_async()
        except (NotFoundError, FileNotFoundError) as cause:
            msg = f"blob {ref.digest} is not in {self._name}"
            raise BlobError(msg) from cause
        except (BaseError, OSError) as cause:
            msg = f"blob {ref.digest} was not read from {self._name}: {cause}"
            raise NotRead(msg) from cause
        return _read(data, ref) if ref.size <= HASHED_AT_ONCE_BYTES else await asyncio.to_thread(_read, data, ref)

    async def has(self, ref: BlobRef) -> bool:
        try:
            return await self._has(ref)
        except (BaseError, OSError) as cause:
            msg = f"{self._name} did not answer: {cause}"
            raise NotRead(msg) from cause

    async def remove(self, digest: str, *, unused_seconds: float) -> bool:
        try:
            found = await obstore.head_async(self._store, path_of(digest))
            if time.time() - found["last_modified"].timestamp() < unused_seconds:
                return False
            await obstore.delete_async(self._store, path_of(digest))
        except (NotFoundError, FileNotFoundError):
            return True
        except (BaseError, OSError) as cause:
            msg = f"blob {digest} was not removed from {self._name}: {cause}"
            raise NotRemoved(msg) from cause
        return True

    async def _has(self, ref: BlobRef, newer_than: float = 0.0) -> bool:
        """Return whether the object is there, and was written after a time in Unix seconds."""
        try:
            found = await obstore.head_async(self._store, path_of(ref.digest))
        except (NotFoundError, FileNotFoundError):
            return False
        return bool(found["size"] == ref.size and found["last_modified"].timestamp() > newer_than)


def _read(data: Any, ref: BlobRef) -> bytes:
    """Return the bytes that an object store gave. Raises BlobError unless they match the reference."""
    return verified(bytes(data), ref)


def _touched(path: Path) -> bool:
    """Note that an object is in use. Return whether it is still there."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


def _write(path: Path, data: bytes) -> None:
    """Write a file so that it is complete and synced, or absent, even if the process dies meanwhile."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
