"""What a program changed in a folder, as a deterministic tar, and the same made again elsewhere. Blocking: call it in a thread.

Names are relative to the folder. Links are kept as links and never followed, neither when reading nor when writing; sockets,
pipes and devices are left out.
"""

import hashlib
import io
import os
import shutil
import stat
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from msgspec import Struct

from evener.sandboxes.port import Changes, ChangesTooLarge, SandboxError

MAX_ENTRIES: Final = 50_000
"""Files, directories and links that a folder may hold: beyond it, changes are refused."""
BLOCK: Final = 1 << 20


class Entry(Struct, frozen=True):
    """A file, directory or link as it was: equal entries are unchanged."""

    mode: int
    """Type and permissions."""
    content: str
    """SHA-256 of a file's bytes, a link's target, empty for a directory."""


class Known(Struct, frozen=True):
    """An entry, and what tells cheaply that it is still the same."""

    stamp: tuple[int, ...]
    entry: Entry


State = dict[str, Known]


def state_of(root: Path, tracked: Callable[[str], bool], known: State | None = None) -> State:
    """Return all tracked entries below `root` by name. A file with the stamp that `known` has is not read again."""
    state: State = {}
    for name, path, status in _walk(root, "", tracked):
        stamp = (status.st_mode, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        before = (known or {}).get(name)
        state[name] = before if before is not None and before.stamp == stamp else Known(stamp, _entry(path, status))
        if len(state) > MAX_ENTRIES:
            msg = f"more than {MAX_ENTRIES} files in {root}"
            raise ChangesTooLarge(msg)
    return state


def changes_since(root: Path, before: State, tracked: Callable[[str], bool], limit_bytes: int) -> Changes:
    """Return what differs from `before`. Raises ChangesTooLarge, before it has read more than `limit_bytes`."""
    now = state_of(root, tracked, before)
    changed = sorted(name for name, known in now.items() if name not in before or before[name].entry != known.entry)
    size = sum((root / name).lstat().st_size for name in changed)
    if size > limit_bytes:
        msg = f"changed files hold {size} bytes, {limit_bytes} are allowed"
        raise ChangesTooLarge(msg)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in changed:
            _pack(archive, root, name, now[name].entry)
    return Changes(archive=buffer.getvalue(), removed=tuple(sorted(before.keys() - now.keys())))


def apply(root: Path, changes: Changes, tracked: Callable[[str], bool]) -> None:
    """Make the changes below `root`. Raises SandboxError for a name that leads out of it or is not tracked."""
    for name in reversed(changes.removed):
        _remove(_target(root, name, tracked))
    try:
        with tarfile.open(fileobj=io.BytesIO(changes.archive)) as archive:
            for member in archive:
                _unpack(archive, member, _target(root, member.name, tracked))
    except tarfile.TarError as cause:
        msg = f"damaged archive of changes: {cause}"
        raise SandboxError(msg) from cause


def _walk(root: Path, folder: str, tracked: Callable[[str], bool]) -> Iterator[tuple[str, Path, os.stat_result]]:
    with os.scandir(root / folder) as found:
        entries = list(found)
    for entry in entries:
        name = f"{folder}/{entry.name}" if folder else entry.name
        status = entry.stat(follow_symlinks=False)
        if not tracked(name):
            continue
        if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode) or stat.S_ISDIR(status.st_mode):
            yield name, Path(entry.path), status
        if stat.S_ISDIR(status.st_mode):
            yield from _walk(root, name, tracked)


def _entry(path: Path, status: os.stat_result) -> Entry:
    mode = status.st_mode
    if stat.S_ISLNK(mode):
        return Entry(stat.S_IFLNK, os.readlink(path))  # noqa: PTH115 - a Path would tidy the target
    if stat.S_ISDIR(mode):
        return Entry(mode, "")
    digest = hashlib.sha256()
    with _open(path) as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return Entry(mode, digest.hexdigest())


def _open(path: Path) -> io.BufferedReader:
    return io.open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb")  # noqa: UP020 - an open descriptor


def _pack(archive: tarfile.TarFile, root: Path, name: str, entry: Entry) -> None:
    member = tarfile.TarInfo(name)
    member.mode = stat.S_IMODE(entry.mode) & 0o777
    if stat.S_ISDIR(entry.mode):
        member.type = tarfile.DIRTYPE
        archive.addfile(member)
    elif stat.S_ISLNK(entry.mode):
        member.type, member.linkname = tarfile.SYMTYPE, _link_out(root, name, entry.content)
        archive.addfile(member)
    else:
        with _open(root / name) as file:
            member.size = os.fstat(file.fileno()).st_size
            archive.addfile(member, file)


def _link_out(root: Path, name: str, target: str) -> str:
    """A link to an absolute path in its own sandbox is kept as a relative one, so that it stays in the sandbox that it comes to."""
    return os.path.relpath(target, root / PurePosixPath(name).parent) if target.startswith(f"{root}/") else target


def _target(root: Path, name: str, tracked: Callable[[str], bool]) -> Path:
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or not tracked(name):
        msg = f"changes of {name!r} are not allowed"
        raise SandboxError(msg)
    for depth in range(1, len(parts)):
        above = root.joinpath(*parts[:depth])
        if above.is_symlink() or (above.exists() and not above.is_dir()):
            above.unlink()  # what the agent replaced by a directory
    return root.joinpath(*parts)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _unpack(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    keep = member.isdir() and target.is_dir() and not target.is_symlink()
    if not keep:
        _remove(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    if member.isdir():
        target.mkdir(exist_ok=True)
    elif member.issym():
        target.symlink_to(member.linkname)
        return
    elif member.isreg() and (content := archive.extractfile(member)) is not None:
        with target.open("xb") as file:
            shutil.copyfileobj(content, file)
    else:
        msg = f"changes hold {member.name!r}, neither file, directory nor link"
        raise SandboxError(msg)
    target.chmod(member.mode & 0o777 | (stat.S_IRWXU if member.isdir() else 0))  # the owner may always enter and clear it
