"""Opens, lists and empties folders that an untrusted program filled, by descriptor. Blocking: call it in a thread of `FileWork`.

Every step names one entry of an open folder. Therefore no path exceeds the kernel's limit, no depth exhausts Python's stack, and no link is
followed, even if somebody replaces a folder by a link meanwhile.
"""

import contextlib
import errno
import itertools
import os
import secrets
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

FOLDER_FLAGS: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
MAX_STUCK: Final = 100
"""The number of entries that cannot be removed after which no further ones are tried."""


class OutOfTime(Exception):
    """The deadline passed, or the work was cancelled."""


class Deadline:
    """The deadline of a piece of work, which another thread can cancel."""

    def __init__(self, seconds: float, called_off: threading.Event | None = None) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds
        self._called_off = called_off

    def check(self) -> None:
        """Raise OutOfTime if the work must end."""
        if time.monotonic() > self._end or (self._called_off is not None and self._called_off.is_set()):
            raise OutOfTime


@contextmanager
def descriptor_of(name: str | os.PathLike[str], flags: int, folder: int | None = None) -> Iterator[int]:
    """Open an entry of an open folder (None: by path) for this block."""
    descriptor = os.open(name, flags | os.O_CLOEXEC, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def opened(name: str | os.PathLike[str], folder: int | None = None) -> Iterator[int]:
    """Open a folder for listing, by name in an open folder (None: by path). Restores its owner's permissions if they are missing."""
    try:
        descriptor = os.open(name, os.O_RDONLY | FOLDER_FLAGS, dir_fd=folder)
    except PermissionError:
        own(name, folder)
        descriptor = os.open(name, os.O_RDONLY | FOLDER_FLAGS, dir_fd=folder)
    try:
        if not os.fstat(descriptor).st_mode & stat.S_IXUSR:  # listed, but its entries would not be found
            os.fchmod(descriptor, stat.S_IRWXU)
        yield descriptor
    finally:
        os.close(descriptor)


def own(name: str | os.PathLike[str], folder: int | None = None) -> None:
    """Let the owner of a folder list, enter and change it."""
    with descriptor_of(name, os.O_PATH | FOLDER_FLAGS, folder) as descriptor:
        os.chmod(f"/proc/self/fd/{descriptor}", stat.S_IRWXU)  # noqa: PTH101 - a descriptor: a path may be swapped for a link


@contextmanager
def descend(folder: int, parts: tuple[str, ...]) -> Iterator[int]:
    """Open a folder below an open one, step by step. Raises OSError if a step is missing or is not a folder."""
    current = os.dup(folder)
    try:
        for part in parts:
            below = os.open(part, os.O_RDONLY | FOLDER_FLAGS, dir_fd=current)
            os.close(current)
            current = below
        yield current
    finally:
        os.close(current)


def open_file(name: str, folder: int) -> int:
    """Open a regular file for reading, even if its owner may not read it. Raises OSError, also for anything else than a file."""
    descriptor = _open_any(name, folder)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "no regular file", name)


def _open_any(name: str, folder: int) -> int:
    """Open an entry without following a link and without waiting for a pipe's writer."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=folder)
    except PermissionError:
        with descriptor_of(name, os.O_PATH | os.O_NOFOLLOW, folder) as held:
            mode = os.fstat(held).st_mode
            if not stat.S_ISREG(mode):
                raise
            path = f"/proc/self/fd/{held}"
            os.chmod(path, stat.S_IMODE(mode) | stat.S_IRUSR)  # noqa: PTH101 - a descriptor: a path may be swapped for a link
            try:
                return os.open(path, flags & ~os.O_NOFOLLOW)
            finally:
                os.chmod(path, stat.S_IMODE(mode))  # noqa: PTH101


def remove(name: str, folder: int, deadline: Deadline) -> None:
    """Remove an entry of an open folder with everything in it. Raises OutOfTime, and OSError for the first entry that cannot be removed."""
    if not is_folder(name, folder):
        os.unlink(name, dir_fd=folder)
        return
    with contextlib.suppress(OSError):
        own(name, folder)
    with opened(name, folder) as descriptor:
        empty(descriptor, deadline)
    os.rmdir(name, dir_fd=folder)


def is_folder(name: str, folder: int) -> bool:
    """Return whether an entry of an open folder is a folder, not a link to one. Raises FileNotFoundError."""
    return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)


def empty(folder: int, deadline: Deadline) -> None:
    """Remove everything in an open folder. Raises OutOfTime, and OSError for the first entry that cannot be removed, after all others.

    Folders are flattened: the folders in a folder are moved up into the open one before that folder is removed. The kernel does not move
    mount points, so nothing is removed from a file system that somebody mounted here.
    """
    stuck: dict[str, OSError] = {}
    names = (f".{secrets.token_hex(8)}.{number}" for number in itertools.count())
    while _pass(folder, names, stuck, deadline):
        pass
    if stuck:
        raise next(iter(stuck.values()))


def _pass(folder: int, names: Iterator[str], stuck: dict[str, OSError], deadline: Deadline) -> bool:
    """Go through the entries once; return whether any of them was removed."""
    went = False
    with os.scandir(folder) as found:
        for entry in found:
            deadline.check()
            if entry.name in stuck or len(stuck) >= MAX_STUCK:
                continue
            try:
                if entry.is_dir(follow_symlinks=False):
                    _flatten(entry.name, folder, names, deadline)
                else:
                    os.unlink(entry.name, dir_fd=folder)
            except FileNotFoundError:
                pass
            except OSError as cause:
                stuck[entry.name] = cause
                continue
            went = True
    return went


def _flatten(name: str, folder: int, names: Iterator[str], deadline: Deadline) -> None:
    """Move the folders inside a folder up, and remove it with the rest."""
    failed: OSError | None = None
    with contextlib.suppress(OSError):
        own(name, folder)
    with opened(name, folder) as inner, os.scandir(inner) as found:
        for entry in found:
            deadline.check()
            try:
                _lift(entry, inner, folder, names)
            except FileNotFoundError:
                pass
            except OSError as cause:
                failed = failed or cause
    try:
        os.rmdir(name, dir_fd=folder)
    except OSError as cause:
        if failed is not None:
            raise failed from cause
        if cause.errno != errno.ENOTEMPTY:  # or the listing missed one: the next pass finds it
            raise


def _lift(entry: os.DirEntry[str], inner: int, folder: int, names: Iterator[str]) -> None:
    if not entry.is_dir(follow_symlinks=False):
        os.unlink(entry.name, dir_fd=inner)
        return
    with contextlib.suppress(OSError):
        own(entry.name, inner)  # a folder that may not be written cannot be moved by a plain user
    os.rename(entry.name, next(names), src_dir_fd=inner, dst_dir_fd=folder)
