"""Folders that a stranger filled: opened, listed and emptied by descriptor. Blocking: call it in a thread of `FileWork`.

Every step names one entry of an open folder. So no path grows beyond what the kernel takes, no depth is one of Python's stack, and no
link is followed, also where somebody swaps a folder for a link meanwhile.
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

FOLDER: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
MOST_STUCK: Final = 100
"""Entries that cannot be removed: after so many of them no further ones are tried."""


class OutOfTime(Exception):
    """The deadline passed, or the work was called off."""


class Deadline:
    """The end of a piece of work. It can be called off from another thread."""

    def __init__(self, seconds: float, called_off: threading.Event | None = None) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds
        self._called_off = called_off

    def check(self) -> None:
        """Raise OutOfTime if the work must end."""
        if time.monotonic() > self._end or (self._called_off is not None and self._called_off.is_set()):
            raise OutOfTime


@contextmanager
def opened(name: str | os.PathLike[str], folder: int | None = None) -> Iterator[int]:
    """Open a folder for listing, by its name in an open folder (None: by its path). Its owner's rights are given back where they lack."""
    try:
        descriptor = os.open(name, os.O_RDONLY | FOLDER, dir_fd=folder)
    except PermissionError:
        own(name, folder)
        descriptor = os.open(name, os.O_RDONLY | FOLDER, dir_fd=folder)
    try:
        if not os.fstat(descriptor).st_mode & stat.S_IXUSR:  # listed, but its entries would not be found
            os.fchmod(descriptor, stat.S_IRWXU)
        yield descriptor
    finally:
        os.close(descriptor)


def own(name: str | os.PathLike[str], folder: int | None = None) -> None:
    """Let the owner of a folder list, enter and change it."""
    descriptor = os.open(name, os.O_PATH | FOLDER, dir_fd=folder)
    try:
        os.chmod(f"/proc/self/fd/{descriptor}", stat.S_IRWXU)  # noqa: PTH101 - a descriptor: a path may be swapped for a link
    finally:
        os.close(descriptor)


@contextmanager
def descend(folder: int, parts: tuple[str, ...]) -> Iterator[int]:
    """Open a folder below an open one, step by step. Raises OSError where a step is missing or no folder."""
    current = os.dup(folder)
    try:
        for part in parts:
            below = os.open(part, os.O_RDONLY | FOLDER, dir_fd=current)
            os.close(current)
            current = below
        yield current
    finally:
        os.close(current)


def open_file(name: str, folder: int) -> int:
    """Open a regular file for reading, also where its owner may not read it. Raises OSError, for anything else too."""
    descriptor = _open_any(name, folder)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "no regular file", name)


def _open_any(name: str, folder: int) -> int:
    """Open an entry, without following a link and without waiting at a pipe."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=folder)
    except PermissionError:
        held = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        mode = os.fstat(held).st_mode
        if not stat.S_ISREG(mode):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
        path = f"/proc/self/fd/{held}"
        os.chmod(path, stat.S_IMODE(mode) | stat.S_IRUSR)  # noqa: PTH101 - a descriptor: a path may be swapped for a link
        try:
            return os.open(path, flags & ~os.O_NOFOLLOW)
        finally:
            os.chmod(path, stat.S_IMODE(mode))  # noqa: PTH101
    finally:
        os.close(held)


def remove(name: str, folder: int, deadline: Deadline) -> None:
    """Remove an entry of an open folder, whatever it is and holds. Raises OSError for the first thing that cannot go, OutOfTime."""
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
    """Remove all that an open folder holds. Raises OSError for the first thing that cannot go, after all others went; OutOfTime.

    Folders are flattened: what lies in a folder is moved up into the open one before that folder goes. The kernel moves no mount point,
    so nothing is removed from a file system that somebody mounted here.
    """
    stuck: dict[str, OSError] = {}
    names = (f".{secrets.token_hex(8)}.{number}" for number in itertools.count())
    while _pass(folder, names, stuck, deadline):
        pass
    if stuck:
        raise next(iter(stuck.values()))


def _pass(folder: int, names: Iterator[str], stuck: dict[str, OSError], deadline: Deadline) -> bool:
    """Go once through the entries; return whether any of them went."""
    went = False
    with os.scandir(folder) as found:
        for entry in found:
            deadline.check()
            if entry.name in stuck or len(stuck) >= MOST_STUCK:
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
    """Move the folders in a folder up, and remove it with the rest."""
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
