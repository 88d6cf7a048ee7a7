"""The files of a container, through the daemon's archives: they are never unpacked on this machine's file system.

What a program changed is the daemon's own list (the upper layer of the container), read one archive for each new folder and each other
changed file. The container does not run meanwhile.
"""

import asyncio
import base64
import hashlib
import io
import json
import stat
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from typing import Final

import aiohttp
from msgspec import Struct

from evener.runtime.tasks import Tasks
from evener.sandboxes.apply_changes import check_member
from evener.sandboxes.changes import DEEP, LONG_NAME, MAX_FOLDER_DEPTH, MAX_NAME_BYTES, MAX_NAMED
from evener.sandboxes.docker_api import Docker, DockerError
from evener.sandboxes.folders import Deadline
from evener.sandboxes.port import UNTRACKED, ChangeLimits, Changes, ChangesTooLarge
from evener.sandboxes.tracked import tracked

AT_A_TIME: Final = 8
"""The archives of one container that are read at a time."""
SLACK_BYTES: Final = 192 << 20
"""Archives hold more than changes: headers, and what was there before the program."""
ARCHIVE_BLOCK_BYTES: Final = 1 << 20
KIND_ADDED: Final = 1
KIND_DELETED: Final = 2
LINK_MODE: Final = 1 << 27
"""Go's bit of a symbolic link in a file's mode, and the following ones of other kinds."""
FOLDER_MODE: Final = 1 << 31
ELSEWHERE: Final = "a hard link to a file that did not change"


class ContainerEntry(Struct, frozen=True, kw_only=True):
    """A file, folder or link of a container."""

    kind: bytes
    """The type of a tar's member."""
    mode: int = 0
    link: str = ""
    """The target of a link."""
    content: bytes = b""

    @property
    def stamp(self) -> tuple[bytes, int, str, str]:
        """What entries that are the same have in common."""
        return self.kind, self.mode, self.link, hashlib.sha256(self.content).hexdigest()


class Differences(Struct, kw_only=True):
    """What differs from the container's image."""

    entries: dict[str, ContainerEntry] = {}
    removed: set[str] = set()
    replaced: set[str] = set()
    """The names of entries that the image has too."""
    excluded: dict[str, str] = {}
    excluded_count: int = 0

    def leave_out(self, name: str, reason: str) -> None:
        """Note an entry that is not kept."""
        self.excluded_count += 1
        if len(self.excluded) < MAX_NAMED:
            self.excluded[name[:MAX_NAME_BYTES]] = reason


class Before(Struct, frozen=True, kw_only=True):
    """The state to which changes are relative."""

    stamps: Mapping[str, tuple[bytes, int, str, str]] = {}
    removed: frozenset[str] = frozenset()


def changes_of(found: Differences, before: Before, limits: ChangeLimits) -> Changes:
    """Return what differs from `before`. Raises ChangesTooLarge. Blocks."""
    changed = {name: entry for name, entry in sorted(found.entries.items()) if before.stamps.get(name) != entry.stamp}
    size = sum(len(entry.content) for entry in changed.values())
    if size > limits.bytes:
        msg = f"changed files hold {size} bytes, {limits.bytes} are allowed"
        raise ChangesTooLarge(msg)
    removed = (found.removed - before.removed) | (before.stamps.keys() - found.entries.keys())
    there_before = found.replaced | before.stamps.keys()
    return Changes(
        archive=tar_of_entries(changed),
        removed=tuple(sorted(removed)),
        replaced=tuple(name for name, entry in changed.items() if name in there_before and entry.kind != tarfile.DIRTYPE),
        excluded=dict(sorted(found.excluded.items())),
        excluded_count=found.excluded_count,
    )


def before_of(found: Differences) -> Before:
    """Return a state for later changes. Blocks."""
    return Before(stamps={name: entry.stamp for name, entry in found.entries.items()}, removed=frozenset(found.removed))


class ContainerFiles:
    """The files of one container."""

    def __init__(self, docker: Docker, container: str) -> None:
        self._docker = docker
        self._path = f"/containers/{container}"

    async def put(self, tar: bytes, place: str = "/") -> None:
        """Unpack a tar at a place that exists. Raises DockerError."""
        await self._docker.put(f"{self._path}/archive", tar, path=place)

    async def mode(self, place: str) -> int | None:
        """Return Go's mode of the entry at a path. None: there is none. Raises DockerError."""
        try:
            async with self._docker.stream("HEAD", f"{self._path}/archive", path=place) as response:
                shown = response.headers["X-Docker-Container-Path-Stat"]
        except DockerError as cause:
            if cause.status == HTTPStatus.NOT_FOUND:
                return None
            raise
        return int(json.loads(base64.b64decode(shown))["mode"])

    async def archive(self, place: str, limit_bytes: int) -> bytes | None:
        """Return a tar of the entry at a path. None: there is none. Raises ChangesTooLarge, DockerError."""
        try:
            async with self._docker.stream("GET", f"{self._path}/archive", path=place) as response:
                return await bounded(response, limit_bytes)
        except DockerError as cause:
            if cause.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    async def look(self, limits: ChangeLimits) -> Differences:
        """Return what differs from the image. Raises ChangesTooLarge, DockerError."""
        try:
            async with asyncio.timeout(limits.seconds):
                listed = await self._docker.get(f"{self._path}/changes") or []
                return await _Look(self, limits).at({item["Path"].lstrip("/"): item["Kind"] for item in listed})
        except TimeoutError as cause:
            msg = f"changed files could not be read within {limits.seconds:g} s"
            raise ChangesTooLarge(msg) from cause


class _Look:
    def __init__(self, files: ContainerFiles, limits: ChangeLimits) -> None:
        self._files = files
        self._limits = limits
        self._found = Differences()
        self._left_bytes = limits.bytes + SLACK_BYTES
        self._room = asyncio.Semaphore(AT_A_TIME)

    async def at(self, kinds: Mapping[str, int]) -> Differences:
        names = sorted(name for name in kinds if tracked(name))
        if len(names) > self._limits.entries:
            msg = f"more than {self._limits.entries} changed files and folders"
            raise ChangesTooLarge(msg)
        above = {str(parent) for name in kinds for parent in PurePosixPath(name).parents}
        mixed = {str(parent) for name in kinds if not tracked(name) for parent in PurePosixPath(name).parents}
        whole: set[str] = set()
        async with Tasks() as tasks:
            for name in names:
                if any(str(parent) in whole for parent in PurePosixPath(name).parents):
                    continue
                if kinds[name] == KIND_ADDED and name not in mixed:
                    whole.add(name)
                    tasks.create_task(self._fetch(name))
                elif kinds[name] == KIND_DELETED or name not in above:
                    tasks.create_task(self._examine(name, was_deleted=kinds[name] == KIND_DELETED))
        return self._found

    async def _examine(self, name: str, *, was_deleted: bool) -> None:
        """Look at an entry that is not new: a folder that changed is not read, only what changed in it."""
        async with self._room:
            mode = await self._files.mode(f"/{name}")
        if was_deleted:
            self._found.removed.add(name)
        if mode is None:
            return
        if mode & FOLDER_MODE and not was_deleted:
            self._found.entries[name] = ContainerEntry(kind=tarfile.DIRTYPE, mode=mode & 0o777)
        else:
            self._found.replaced.add(name)
            await self._fetch(name)

    async def _fetch(self, name: str) -> None:
        async with self._room:
            data = await self._files.archive(f"/{name}", self._left_bytes)
            if data is None:
                return
            self._left_bytes -= len(data)
            await asyncio.to_thread(self._read, data, PurePosixPath(name).parent)

    def _read(self, data: bytes, above: PurePosixPath) -> None:
        try:
            with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
                for member in tar:
                    self._take(tar, member, above)
        except (tarfile.TarError, ValueError) as cause:
            msg = f"changed files could not be read: {cause}"
            raise ChangesTooLarge(msg) from cause

    def _take(self, tar: tarfile.TarFile, member: tarfile.TarInfo, above: PurePosixPath) -> None:
        name = str(above / member.name)
        if not tracked(name):
            return
        if len(self._found.entries) + self._found.excluded_count >= self._limits.entries:
            msg = f"more than {self._limits.entries} files and folders"
            raise ChangesTooLarge(msg)
        mode = member.mode & 0o777
        if name.count("/") >= MAX_FOLDER_DEPTH or len(name.encode(errors="surrogateescape")) > MAX_NAME_BYTES:
            self._found.leave_out(name, DEEP if name.count("/") >= MAX_FOLDER_DEPTH else LONG_NAME)
        elif member.isdir():
            self._found.entries[name] = ContainerEntry(kind=tarfile.DIRTYPE, mode=mode)
        elif member.issym():
            self._found.entries[name] = ContainerEntry(kind=tarfile.SYMTYPE, link=member.linkname)
        elif member.islnk():
            if (linked := self._found.entries.get(str(above / member.linkname))) is None:
                self._found.leave_out(name, ELSEWHERE)
            else:
                self._found.entries[name] = linked
        elif member.isreg() and (file := tar.extractfile(member)) is not None:
            self._found.entries[name] = ContainerEntry(kind=tarfile.REGTYPE, mode=mode, content=file.read())
        else:
            self._found.leave_out(name, "a pipe" if member.isfifo() else "a device")


async def bounded(response: aiohttp.ClientResponse, limit_bytes: int) -> bytes:
    """Return the content of an answer. Raises ChangesTooLarge if it is longer."""
    read = bytearray()
    while block := await response.content.read(ARCHIVE_BLOCK_BYTES):
        read += block
        if len(read) > limit_bytes:
            msg = f"files hold more than the {limit_bytes} bytes that are read"
            raise ChangesTooLarge(msg)
    return bytes(read)


def tar_of_entries(entries: Mapping[str, ContainerEntry], owner: tuple[int, int] = (0, 0)) -> bytes:
    """Return a tar of entries, without times. Blocks."""
    return _tar(((_member(name, entry), entry.content) for name, entry in entries.items()), owner)


def tar_of_folder(folder: Path, owner: tuple[int, int] = (0, 0)) -> bytes:
    """Return a tar of a folder's content, without times: the same files give the same bytes. Raises OSError. Blocks."""
    return _tar(_of_folder(folder), owner)


def given_to(archive: bytes, owner: tuple[int, int], deadline: Deadline) -> tuple[bytes, list[str]]:
    """Return a tar whose entries belong to somebody else, and their names. Raises tarfile.TarError, SandboxError, OutOfTime. Blocks."""
    names: list[str] = []

    def members() -> Iterator[tuple[tarfile.TarInfo, bytes]]:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            for member in tar:
                deadline.check()
                check_member(member)
                names.append(member.name)
                if not member.isdir() and any(place.startswith(f"/{member.name}/") for place in UNTRACKED):
                    continue  # the parents of our own folders stay folders
                content = tar.extractfile(member) if member.isreg() else None
                member.mode &= 0o777
                yield member, b"" if content is None else content.read()

    return _tar(members(), owner), names


def _of_folder(folder: Path) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    for path in sorted(folder.rglob("*")):
        name, status = path.relative_to(folder).as_posix(), path.lstat()
        mode = stat.S_IMODE(status.st_mode)
        if path.is_symlink():
            entry = ContainerEntry(kind=tarfile.SYMTYPE, link=str(path.readlink()))
        elif path.is_dir():
            entry = ContainerEntry(kind=tarfile.DIRTYPE, mode=mode)
        else:
            entry = ContainerEntry(kind=tarfile.REGTYPE, mode=mode, content=path.read_bytes())
        yield _member(name, entry), entry.content


def _member(name: str, entry: ContainerEntry) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.mode, member.linkname, member.size = entry.kind, entry.mode or 0o777, entry.link, len(entry.content)
    return member


def _tar(members: Iterable[tuple[tarfile.TarInfo, bytes]], owner: tuple[int, int]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for member, content in members:
            member.uid, member.gid = owner
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()
