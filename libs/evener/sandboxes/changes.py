"""Collects what a program changed in a folder, as a deterministic tar. Blocking: call it in a thread of `FileWork`.

Names are relative to the folder. Links are kept as links and never followed. What cannot be kept is named with the reason, and the rest is
kept: omitted are sockets, pipes and devices, entries nested too deeply, and files that cannot be read or change while they are read. A
machine at its limits omits nothing: that is raised. Sizes and counts are checked first, so that nothing is read if a limit says that
nothing will be kept.
"""

import hashlib
import io
import os
import stat
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Final

from msgspec import Struct

from evener.runtime.file_errors import is_of_files
from evener.sandboxes.folders import Deadline, OutOfTime, descend, open_file, opened
from evener.sandboxes.port import ChangeLimits, Changes, ChangesTooLarge

MAX_FOLDER_DEPTH: Final = 100
"""The limit of nested folders. Entries below it are omitted."""
MAX_NAME_BYTES: Final = 2048
"""The limit of a name, folders included. Longer names are omitted, because the kernel limits a path."""
MAX_NAMES_BYTES: Final = 32 << 20
"""The limit of all names together. Beyond it, the changes are refused."""
MAX_NAMED: Final = 1_000
"""The number of omitted entries that are named. All are counted."""
BLOCK: Final = 1 << 20
SPECIAL_FILES: Final = {stat.S_IFSOCK: "a socket", stat.S_IFIFO: "a pipe", stat.S_IFBLK: "a device", stat.S_IFCHR: "a device"}
DEEP: Final = f"nested deeper than {MAX_FOLDER_DEPTH} folders"
LONG_NAME: Final = f"a name of more than {MAX_NAME_BYTES} bytes"
UNSTEADY: Final = "changed while it was read"


class KnownEntry(Struct, frozen=True):
    """The former state of a file, directory or link."""

    mode: int
    """The type and permissions; for a link the type only."""
    size: int
    """The size of a file."""
    stamp: tuple[int, ...]
    """A stamp. Entries with equal stamps are certainly the same."""
    content: str | None
    """The SHA-256 of a file's bytes, or a link's target. None: a directory, or not read."""


State = dict[str, KnownEntry]


class Unreadable(Exception):
    """The reason why one entry is omitted."""


class Look:
    """One walk through a folder, with the entries found and those omitted."""

    def __init__(self, root: int, tracked: Callable[[str], bool], limits: ChangeLimits, deadline: Deadline) -> None:
        self.state: State = {}
        self.excluded: dict[str, str] = {}
        """The first omitted entries, with the reasons."""
        self.excluded_count = 0
        self.unlisted: set[str] = set()
        """Folders whose entries were not read."""
        self._root = root
        self._tracked = tracked
        self._limits = limits
        self._names_bytes = self._entries = 0
        self._deadline = deadline

    def walk(self) -> None:
        """Look at every entry without reading it. Raises ChangesTooLarge, OutOfTime, and OSError for the folder itself or the machine."""
        folders = [""]
        while folders:
            name = folders.pop()
            try:
                with self.folder(name) as descriptor, os.scandir(descriptor) as found:
                    folders += [below for entry in found if (below := self._see(f"{name}/{entry.name}" if name else entry.name, entry))]
            except OSError as cause:
                if not name or not is_of_files(cause):
                    raise
                self.unlisted.add(name)
                self.leave_out(name, cause.strerror or "cannot be listed")

    @contextmanager
    def folder(self, name: str) -> Iterator[int]:
        """Open a folder by its name."""
        *above, last = PurePosixPath(name).parts or (".",)
        with descend(self._root, tuple(above)) as parent, opened(last, parent) as descriptor:
            yield descriptor

    @contextmanager
    def file(self, name: str) -> Iterator[tuple[io.FileIO, os.stat_result]]:
        """Open a file that `walk` saw. Raises Unreadable if it is gone or cannot be read, and OSError if the machine is at fault."""
        *above, last = PurePosixPath(name).parts
        try:
            with descend(self._root, tuple(above)) as parent:
                descriptor = open_file(last, parent)
        except PermissionError as cause:
            raise Unreadable(cause.strerror) from cause
        except OSError as cause:
            if not is_of_files(cause):
                raise
            raise Unreadable(UNSTEADY) from cause
        with io.FileIO(descriptor) as file:
            status = os.fstat(descriptor)
            if (status.st_mode, status.st_size) != (self.state[name].mode, self.state[name].size):
                raise Unreadable(UNSTEADY)
            yield file, status

    def leave_out(self, name: str, reason: str) -> None:
        """Note an entry that is not kept."""
        self.excluded_count += 1
        if len(self.excluded) < MAX_NAMED:
            self.excluded[name[:MAX_NAME_BYTES]] = reason

    def link(self, name: str) -> str:
        """Return a link's target. Raises Unreadable, OSError."""
        *above, last = PurePosixPath(name).parts
        try:
            with descend(self._root, tuple(above)) as parent:
                return os.readlink(last, dir_fd=parent)
        except OSError as cause:
            if not is_of_files(cause):
                raise
            raise Unreadable(UNSTEADY) from cause

    def blocks(self, file: io.FileIO, size: int) -> Iterator[bytes]:
        """Read exactly `size` bytes of a file. Raises OutOfTime, and Unreadable if the file is shorter."""
        while size > 0:
            self._deadline.check()
            block = file.read(min(size, BLOCK))
            if not block:
                raise Unreadable(UNSTEADY)
            size -= len(block)
            yield block

    def digest(self, name: str) -> str:
        """Return the SHA-256 of a file. Raises Unreadable, OutOfTime."""
        digest = hashlib.sha256()
        with self.file(name) as (file, status):
            for block in self.blocks(file, status.st_size):
                digest.update(block)
        return digest.hexdigest()

    def _see(self, name: str, entry: os.DirEntry[str]) -> str | None:
        """Note an entry; return its name if it is a folder to walk."""
        self._deadline.check()
        if not self._tracked(name):
            return None
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:  # gone in the meantime
            return None
        self._count(name)
        kind = stat.S_IFMT(status.st_mode)
        if kind in SPECIAL_FILES:
            self.leave_out(name, SPECIAL_FILES[kind])
            return None
        deep, long = name.count("/") >= MAX_FOLDER_DEPTH, len(os.fsencode(name)) > MAX_NAME_BYTES
        if deep or long:
            self.leave_out(name, DEEP if deep else LONG_NAME)
            return None
        stamp = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
        mode = kind if kind == stat.S_IFLNK else status.st_mode
        self.state[name] = KnownEntry(mode, status.st_size if kind == stat.S_IFREG else 0, stamp, None)
        return name if kind == stat.S_IFDIR else None

    def _count(self, name: str) -> None:
        self._names_bytes += len(name)
        self._entries += 1
        if self._entries > self._limits.entries:
            msg = f"more than {self._limits.entries} files and folders"
            raise ChangesTooLarge(msg)
        if self._names_bytes > MAX_NAMES_BYTES:
            msg = f"names of files hold more than {MAX_NAMES_BYTES} bytes"
            raise ChangesTooLarge(msg)


def state_of(root: Path, tracked: Callable[[str], bool], limits: ChangeLimits | None = None) -> State:
    """Return all tracked entries below `root` by name, with the digests of files. Raises ChangesTooLarge, OSError."""
    with _looking(root, tracked, limits or ChangeLimits(), None) as look:
        state: State = {}
        for name, known in look.state.items():
            try:
                state[name] = _read(look, name, known)
            except Unreadable:
                continue
        return state


def changes_since(
    root: Path, before: State, tracked: Callable[[str], bool], limits: ChangeLimits, called_off: threading.Event | None = None
) -> Changes:
    """Return what differs from `before`. Raises ChangesTooLarge before reading anything that will not be kept.

    Raises OSError for the root, and for a machine at its limits: what an agent left is whole or not there.
    """
    with _looking(root, tracked, limits, called_off) as look:
        maybe = sorted(name for name, known in look.state.items() if not _same(known, before.get(name)))
        surely = sum(known.size for name in maybe if _differs(known := look.state[name], before.get(name)))
        if surely > limits.bytes:
            msg = f"changed files hold {surely} bytes, {limits.bytes} are allowed"
            raise ChangesTooLarge(msg)
        tar = _Tar(root, limits.bytes)
        for name in maybe:
            try:
                tar.add(look, name, before.get(name))
            except Unreadable as reason:
                look.leave_out(name, str(reason))
        gone = sorted(name for name in before.keys() - look.state.keys() if not _unseen(name, look.unlisted))
        excluded = dict(sorted(look.excluded.items()))
        replaced = tuple(name for name in tar.files if name in before and not stat.S_ISDIR(before[name].mode))
        return Changes(archive=tar.close(), removed=tuple(gone), replaced=replaced, excluded=excluded, excluded_count=look.excluded_count)


@contextmanager
def _looking(root: Path, tracked: Callable[[str], bool], limits: ChangeLimits, called_off: threading.Event | None) -> Iterator[Look]:
    try:
        with opened(root) as descriptor:
            look = Look(descriptor, tracked, limits, Deadline(limits.seconds, called_off))
            look.walk()
            yield look
    except OutOfTime as cause:
        msg = f"changed files could not be read within {limits.seconds:g} s"
        raise ChangesTooLarge(msg) from cause


def _read(look: Look, name: str, known: KnownEntry) -> KnownEntry:
    match stat.S_IFMT(known.mode):
        case stat.S_IFREG:
            return KnownEntry(known.mode, known.size, known.stamp, look.digest(name))
        case stat.S_IFLNK:
            return KnownEntry(known.mode, known.size, known.stamp, look.link(name))
        case _:
            return known


def _same(now: KnownEntry, before: KnownEntry | None) -> bool:
    """Return whether an entry is certainly unchanged, without reading it."""
    if before is None or now.mode != before.mode:
        return False
    return stat.S_ISDIR(now.mode) or (now.stamp, now.size) == (before.stamp, before.size)


def _differs(now: KnownEntry, before: KnownEntry | None) -> bool:
    """Return whether an entry has certainly changed, without reading it. Otherwise its size equals that of the former file."""
    return before is None or (now.mode, now.size) != (before.mode, before.size)


def _unseen(name: str, unlisted: set[str]) -> bool:
    """Return whether the folder of an entry was not read, so that it is unknown whether the entry is gone."""
    return bool(unlisted) and any(above.as_posix() in unlisted for above in PurePosixPath(name).parents)


class _Tar:
    """A tar without times and owners. An entry that cannot be read to its end leaves no trace in it."""

    def __init__(self, root: Path, limit_bytes: int) -> None:
        self._root = root
        self._buffer = io.BytesIO()
        self._limit_bytes = self._left_bytes = limit_bytes
        self.files: list[str] = []
        """The names of the files and links that were added."""

    def add(self, look: Look, name: str, before: KnownEntry | None) -> None:
        """Add an entry unless it proves to be unchanged. Raises Unreadable, OutOfTime, ChangesTooLarge."""
        known = look.state[name]
        member = tarfile.TarInfo(name)
        member.mode = stat.S_IMODE(known.mode) & 0o777
        if stat.S_ISDIR(known.mode):
            member.type = tarfile.DIRTYPE
            self._header(member)
        elif stat.S_ISLNK(known.mode):
            target = look.link(name)
            if before is None or not stat.S_ISLNK(before.mode) or before.content != target:
                member.type, member.linkname = tarfile.SYMTYPE, _link_out(self._root, name, target)
                self._header(member)
                self.files.append(name)
        elif _differs(known, before) or before is None or before.content != look.digest(name):
            self._add_file(look, member)
            self.files.append(name)

    def close(self) -> bytes:
        """Return the whole archive."""
        self._buffer.write(bytes(2 * tarfile.BLOCKSIZE))
        self._pad(tarfile.RECORDSIZE)
        return self._buffer.getvalue()

    def _add_file(self, look: Look, member: tarfile.TarInfo) -> None:
        start = self._buffer.tell()
        try:
            with look.file(member.name) as (file, status):
                member.size = status.st_size
                self._take(member.size)
                self._header(member)
                for block in look.blocks(file, member.size):
                    self._buffer.write(block)
        except BaseException:
            self._buffer.seek(start)
            self._buffer.truncate()
            raise
        self._pad(tarfile.BLOCKSIZE)

    def _take(self, size: int) -> None:
        if size > self._left_bytes:
            msg = f"changed files hold more than the {self._limit_bytes} bytes that are allowed"
            raise ChangesTooLarge(msg)
        self._left_bytes -= size

    def _header(self, member: tarfile.TarInfo) -> None:
        self._buffer.write(member.tobuf(tarfile.PAX_FORMAT))

    def _pad(self, size: int) -> None:
        self._buffer.write(bytes(-self._buffer.tell() % size))


def _link_out(root: Path, name: str, target: str) -> str:
    """Return the target of a link for another sandbox: an absolute path becomes a relative one, so that it stays inside that sandbox."""
    return os.path.relpath(target, root / PurePosixPath(name).parent) if target.startswith(f"{root}/") else target
