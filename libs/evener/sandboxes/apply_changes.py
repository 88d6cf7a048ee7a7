"""Applies the changes of another sandbox to a folder. Blocking: call it in a thread of `FileWork`.

Names come from a sandbox and are not trusted. Every step works on file descriptors, and nothing is written through a link.
"""

import io
import os
import shutil
import stat
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Final

from evener.sandboxes.changes import MAX_FOLDER_DEPTH
from evener.sandboxes.folders import FOLDER_FLAGS, Deadline, OutOfTime, descend, descriptor_of, is_folder, opened, remove
from evener.sandboxes.port import Changes, SandboxError

APPLY_SECONDS: Final = 300.0


def apply(root: Path, changes: Changes, tracked: Callable[[str], bool]) -> None:
    """Apply the changes below `root`. Raises OSError, and SandboxError for a name that leaves `root` or is not tracked."""
    deadline = Deadline(APPLY_SECONDS)
    try:
        with opened(root) as folder:
            for name in reversed(changes.removed):
                _drop(folder, parts_of(name, tracked), deadline)
            with tarfile.open(fileobj=io.BytesIO(changes.archive)) as archive:
                for member in archive:
                    deadline.check()
                    check_member(member)
                    _unpack(archive, member, folder, parts_of(member.name, tracked), deadline)
    except tarfile.TarError as cause:
        msg = f"damaged archive of changes: {cause}"
        raise SandboxError(msg) from cause
    except OutOfTime as cause:
        msg = f"changes were not applied within {APPLY_SECONDS:g} s"
        raise SandboxError(msg) from cause


def make_folder(root: int, parts: tuple[str, ...]) -> None:
    """Create a folder and its parents, replacing anything else in their place."""
    for depth in range(1, len(parts) + 1):
        *above, last = parts[:depth]
        with descend(root, tuple(above)) as parent:
            with suppress(FileNotFoundError):
                if is_folder(last, parent):
                    continue
                os.unlink(last, dir_fd=parent)
            os.mkdir(last, dir_fd=parent)


def parts_of(name: str, tracked: Callable[[str], bool]) -> tuple[str, ...]:
    """Return the parts of a name in changes. Raises SandboxError for one that leaves the sandbox or is not tracked."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or len(parts) > MAX_FOLDER_DEPTH or not tracked(name):
        msg = f"changes of {name!r} are not allowed"
        raise SandboxError(msg)
    return parts


def check_member(member: tarfile.TarInfo) -> None:
    """Raise SandboxError for an entry that an archive of changes never has: a device, a hard link, a file that is longer than its bytes."""
    if not (member.isdir() or member.issym() or member.isreg()) or member.issparse():
        msg = f"changes hold {member.name!r}, neither file, directory nor link"
        raise SandboxError(msg)


def _drop(root: int, parts: tuple[str, ...], deadline: Deadline) -> None:
    with suppress(FileNotFoundError, NotADirectoryError), descend(root, parts[:-1]) as parent:
        remove(parts[-1], parent, deadline)


@contextmanager
def _made(root: int, parts: tuple[str, ...]) -> Iterator[int]:
    """Open a folder, which is created if it is missing."""
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(descend(root, parts))
        except OSError:
            make_folder(root, parts)
            folder = stack.enter_context(descend(root, parts))
        yield folder


def _unpack(archive: tarfile.TarFile, member: tarfile.TarInfo, root: int, parts: tuple[str, ...], deadline: Deadline) -> None:
    *above, last = parts
    content = archive.extractfile(member) if member.isreg() else None
    with _made(root, tuple(above)) as parent:
        if member.isdir():
            make_folder(parent, (last,))
            with descriptor_of(last, os.O_RDONLY | FOLDER_FLAGS, parent) as made:
                os.fchmod(made, member.mode & 0o777 | stat.S_IRWXU)  # the owner may always enter and clear it
            return
        with suppress(FileNotFoundError):
            remove(last, parent, deadline)
        if member.issym():
            os.symlink(member.linkname, last, dir_fd=parent)
        elif content is not None:
            descriptor = os.open(last, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=parent)
            with io.FileIO(descriptor, "w") as file:
                shutil.copyfileobj(content, file)
                os.fchmod(descriptor, member.mode & 0o777)
