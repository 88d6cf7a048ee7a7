"""What a program changed in a folder, as a deterministic tar. Blocking: call it in a thread of `FileWork`.

Names are relative to the folder. Links are kept as links and never followed. What cannot be kept is left out by name and with the
reason, and the rest is kept: sockets, pipes and devices, what is nested too deep, what cannot be read or changes while it is read.
Sizes and counts are looked at first: nothing is read where a limit says that nothing will be kept.
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

from evener.sandboxes.folders import Deadline, OutOfTime, descend, open_file, opened
from evener.sandboxes.port import ChangeLimits, Changes, ChangesTooLarge

MAX_DEPTH: Final = 100
"""Folders in folders. What lies deeper is left out."""
MAX_NAME_BYTES: Final = 2048
"""Of a name, folders included. Longer ones are left out: a path has to fit into what the kernel takes."""
MAX_NAMES_BYTES: Final = 32 << 20
"""Of all names together: beyond it, changes are refused."""
MOST_NAMED: Final = 1_000
"""Of what is left out so many are named; all are counted."""
BLOCK: Final = 1 << 20
KINDS: Final = {stat.S_IFSOCK: "a socket", stat.S_IFIFO: "a pipe", stat.S_IFBLK: "a device", stat.S_IFCHR: "a device"}
DEEP: Final = f"nested deeper than {MAX_DEPTH} folders"
LONG: Final = f"a name of more than {MAX_NAME_BYTES} bytes"
UNSTEADY: Final = "changed while it was read"


class Known(Struct, frozen=True):
    """A file, directory or link as it was."""

    mode: int
    """Type and permissions; of a link the type alone."""
    size: int
    """Of a file."""
    stamp: tuple[int, ...]
    """Equal stamps: surely the same."""
    content: str | None
    """SHA-256 of a file's bytes, a link's target. None: not read, or a directory."""


State = dict[str, Known]


class Unreadable(Exception):
    """Why one entry is left out."""


class Look:
    """One walk through a folder: what is there, and what is left out."""

    def __init__(self, root: int, tracked: Callable[[str], bool], limits: ChangeLimits, deadline: Deadline) -> None:
        self.state: State = {}
        self.left_out: dict[str, str] = {}
        """The first of them, with the reasons."""
        self.left_out_count = 0
        self.unlisted: set[str] = set()
        """Folders whose entries nobody saw."""
        self._root = root
        self._tracked = tracked
        self._limits = limits
        self._names_bytes = self._entries = 0
        self._deadline = deadline

    def walk(self) -> None:
        """Look at every entry, and read none. Raises ChangesTooLarge, OutOfTime, OSError for the folder itself."""
        folders = [""]
        while folders:
            name = folders.pop()
            try:
                with self.folder(name) as descriptor, os.scandir(descriptor) as found:
                    folders += [below for entry in found if (below := self._see(f"{name}/{entry.name}" if name else entry.name, entry))]
            except OSError as cause:
                if not name:
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
        """Open a file that `walk` saw. Raises Unreadable where it is not there any more, or cannot be read."""
        *above, last = PurePosixPath(name).parts
        try:
            with descend(self._root, tuple(above)) as parent:
                descriptor = open_file(last, parent)
        except PermissionError as cause:
            raise Unreadable(cause.strerror) from cause
        except OSError as cause:
            raise Unreadable(UNSTEADY) from cause
        with io.FileIO(descriptor) as file:
            status = os.fstat(descriptor)
            if (status.st_mode, status.st_size) != (self.state[name].mode, self.state[name].size):
                raise Unreadable(UNSTEADY)
            yield file, status

    def leave_out(self, name: str, reason: str) -> None:
        """Note what is not kept."""
        self.left_out_count += 1
        if len(self.left_out) < MOST_NAMED:
            self.left_out[name[:MAX_NAME_BYTES]] = reason

    def link(self, name: str) -> str:
        """Return a link's target. Raises Unreadable."""
        *above, last = PurePosixPath(name).parts
        try:
            with descend(self._root, tuple(above)) as parent:
                return os.readlink(last, dir_fd=parent)
        except OSError as cause:
            raise Unreadable(UNSTEADY) from cause

    def blocks(self, file: io.FileIO, size: int) -> Iterator[bytes]:
        """Read exactly so many bytes of a file. Raises Unreadable where it has fewer, OutOfTime."""
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
        """Note an entry; return its name if it is a folder to look into."""
        self._deadline.check()
        if not self._tracked(name):
            return None
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:  # gone in the meantime
            return None
        self._count(name)
        kind = stat.S_IFMT(status.st_mode)
        if kind in KINDS:
            self.leave_out(name, KINDS[kind])
            return None
        deep, long = name.count("/") >= MAX_DEPTH, len(os.fsencode(name)) > MAX_NAME_BYTES
        if deep or long:
            self.leave_out(name, DEEP if deep else LONG)
            return None
        stamp = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
        mode = kind if kind == stat.S_IFLNK else status.st_mode
        self.state[name] = Known(mode, status.st_size if kind == stat.S_IFREG else 0, stamp, None)
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
    """Return what differs from `before`. Raises ChangesTooLarge before anything is read that will not be kept; OSError for the root."""
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
        left_out = dict(sorted(look.left_out.items()))
        return Changes(archive=tar.close(), removed=tuple(gone), left_out=left_out, left_out_count=look.left_out_count)


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


def _read(look: Look, name: str, known: Known) -> Known:
    match stat.S_IFMT(known.mode):
        case stat.S_IFREG:
            return Known(known.mode, known.size, known.stamp, look.digest(name))
        case stat.S_IFLNK:
            return Known(known.mode, known.size, known.stamp, look.link(name))
        case _:
            return known


def _same(now: Known, before: Known | None) -> bool:
    """Return whether nothing has to be read to know that an entry is as it was."""
    if before is None or now.mode != before.mode:
        return False
    return stat.S_ISDIR(now.mode) or (now.stamp, now.size) == (before.stamp, before.size)


def _differs(now: Known, before: Known | None) -> bool:
    """Return whether nothing has to be read to know that an entry is another one. Else its size is one of the prepared files."""
    return before is None or (now.mode, now.size) != (before.mode, before.size)


def _unseen(name: str, unlisted: set[str]) -> bool:
    """Return whether nobody looked where an entry was: then it is not known to be gone."""
    return bool(unlisted) and any(above.as_posix() in unlisted for above in PurePosixPath(name).parents)


class _Tar:
    """A tar without times and owners. An entry that cannot be read to its end leaves nothing in it."""

    def __init__(self, root: Path, limit_bytes: int) -> None:
        self._root = root
        self._buffer = io.BytesIO()
        self._limit_bytes = self._left_bytes = limit_bytes

    def add(self, look: Look, name: str, before: Known | None) -> None:
        """Add an entry, unless it proves to be as before. Raises Unreadable, OutOfTime, ChangesTooLarge."""
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
        elif _differs(known, before) or before is None or before.content != look.digest(name):
            self._add_file(look, member)

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
    """A link to an absolute path in its own sandbox is kept as a relative one, so that it stays in the sandbox that it comes to."""
    return os.path.relpath(target, root / PurePosixPath(name).parent) if target.startswith(f"{root}/") else target
