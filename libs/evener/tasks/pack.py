"""Packs task directories as tars: the same files give the same bytes, and nothing is unpacked outside its folder."""

import hashlib
import io
import os
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from msgspec import Struct

from evener.proto.blobs import BlobRef
from evener.proto.spec import TaskRef
from evener.runtime.file_errors import is_of_files
from evener.tasks.directory import MAX_BYTES, MAX_FILES, MAX_TASK_DEPTH, Task, entries, leaves, load
from evener.tasks.errors import TaskError

FILE_MODE: Final = 0o644
PROGRAM_MODE: Final = 0o755


class Packed(Struct, frozen=True, kw_only=True):
    """A packed task directory, and the reference by which events name it."""

    ref: TaskRef
    data: bytes
    """The tar. Its SHA-256 is the task's digest."""


def pack(path: Path) -> Packed:
    """Check the task directory `path` and pack it. Raises TaskError."""
    task = load(path)
    data = archive_of(path)
    digest = hashlib.sha256(data).hexdigest()
    return Packed(ref=TaskRef(name=task.name, digest=digest, archive=BlobRef(digest=digest, size=len(data))), data=data)


def archive_of(folder: Path) -> bytes:
    """Return a tar of a folder of a task: the same files give the same bytes. Raises TaskError, OSError. Blocks."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for entry in entries(folder):
            _add(tar, entry, entry.relative_to(folder).as_posix())
    return buffer.getvalue()


def unpack(data: bytes, into: Path) -> None:
    """Write the files of a packed task into the empty folder `into`. Raises TaskError without writing anything outside the folder.

    Raises OSError if the machine is at fault, such as for a full disk.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            members = tar.getmembers()
            _check(members)
            for member in members:
                if not member.issym():
                    _write(tar, member, into)
        # Links last: no file is ever written through one.
        _link({into / member.name: member.linkname for member in members if member.issym()}, into)
    except (tarfile.TarError, OSError, ValueError) as cause:  # ValueError: numbers in headers that are none
        if isinstance(cause, OSError) and not is_of_files(cause):
            raise
        msg = f"packed task of {len(data)} bytes: {cause}"
        raise TaskError(msg) from cause


def unpacked(data: bytes, into: Path) -> Task:
    """Return the task in an archive, whose files are written into the empty folder `into`. Raises TaskError, OSError."""
    unpack(data, into)
    return load(into)


def _add(tar: tarfile.TarFile, entry: Path, name: str) -> None:
    info = tarfile.TarInfo(name)
    if entry.is_symlink():
        info.type, info.linkname = tarfile.SYMTYPE, str(entry.readlink())
        tar.addfile(info)
    elif entry.is_dir():
        info.type, info.mode = tarfile.DIRTYPE, PROGRAM_MODE
        tar.addfile(info)
    else:
        body = entry.read_bytes()
        info.size = len(body)
        info.mode = PROGRAM_MODE if os.access(entry, os.X_OK) else FILE_MODE
        tar.addfile(info, io.BytesIO(body))


def _check(members: list[tarfile.TarInfo]) -> None:
    if len(members) > MAX_FILES or sum(member.size for member in members) > MAX_BYTES:
        msg = f"packed task is too large: more than {MAX_FILES} files or {MAX_BYTES // 1024**2} MiB"
        raise TaskError(msg)
    for member in members:
        name = PurePosixPath(member.name)
        if name.is_absolute() or ".." in name.parts or not name.parts:
            msg = f"packed task: {member.name!r} leaves its folder"
            raise TaskError(msg)
        if len(name.parts) > MAX_TASK_DEPTH + 1:
            msg = f"packed task has folders nested deeper than {MAX_TASK_DEPTH}"
            raise TaskError(msg)
        if not (member.isreg() or member.isdir() or member.issym()):
            msg = f"packed task: {member.name!r} is neither a file, a folder nor a link"
            raise TaskError(msg)


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, into: Path) -> None:
    target = into / member.name
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    body = tar.extractfile(member)
    target.write_bytes(b"" if body is None else body.read())
    target.chmod(PROGRAM_MODE if member.mode & 0o100 else FILE_MODE)


def _link(links: Mapping[Path, str], into: Path) -> None:
    """Create the links, or none if one of them leaves the folder."""
    try:
        for link, target in links.items():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(target)
        _check_links(into, links)
    except (OSError, TaskError):
        for link in links:
            if link.is_symlink():
                link.unlink()
        raise


def _check_links(into: Path, links: Iterable[Path]) -> None:
    for link in links:
        if leaves(into, link):
            msg = f"packed task: {link.relative_to(into)} is a link that leaves its folder"
            raise TaskError(msg)
