"""Keeps an agent's hands off what grades it: some of its changes are not taken over into the sandbox of the tests.

Whatever an agent leaves is its work, also outside its working directory: packages that it installed, configuration that it wrote. But the
tests run by the image's programs, and an agent that is root in its image can replace those. So the image's own programs, libraries and
Python modules stay as they are, and what Python, the shell and pytest load by themselves is dropped.
"""

import asyncio
import io
import re
import tarfile
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct, structs

from evener.runtime.tasks import Tasks
from evener.sandboxes.port import Changes, NotAFile, Sandbox, SandboxError

PROGRAMS: Final = ("usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin")
SYSTEM_PLACES: Final = frozenset({"usr", "opt", "bin", "sbin", "lib", "lib32", "lib64"})
"""The image's files below these folders stay. New ones are the agent's work."""
PACKAGES: Final = re.compile(r"/(?:site|dist)-packages/")
"""Packages are the agent's work also where it replaced them."""
START_UP: Final = re.compile(
    r"""(?:^|/)(?:sitecustomize|usercustomize)(?:\.py|/|$)  # Python runs them first
    |(?:^|/)__pycache__(?:/|$)                              # a compiled module need not be what its source says
    |/python3\d+\.zip$
    |/(?:site|dist)-packages/(?:_pytest|pytest|pluggy|iniconfig)(?:\.py$|/|$)
    |(?:^|/)glibc-hwcaps(?:/|$)                             # libraries that are preferred to the system's
    |^etc/(?:ld\.so\.|profile(?:\.d/|$)|bash\.bashrc$|environment$)
    |^root/\.(?:bash|profile)""",
    re.VERBOSE,
)
RUNNERS: Final = frozenset({"_pytest", "pytest", "pluggy", "iniconfig"})
"""Modules that take the place of the test runner's if they lie where it is started."""
IMPORT_LINE: Final = re.compile(rb"^import[ \t]", re.MULTILINE)
PYTEST_PLUGIN: Final = b"pytest11"
TEXT_BYTES: Final = 1 << 20
AT_ONCE: Final = 8
"""The places that are looked at together."""


class Doubt(Struct, frozen=True):
    """A change that is kept out or not, depending on what the image has."""

    name: str
    places: list[str]
    out_if_there: bool
    """Whether the change is kept out if one of these places exists in the image, or if none does."""


async def apply_guarded(sandbox: Sandbox, changes: Changes) -> tuple[str, ...]:
    """Apply an agent's changes to the sandbox of its tests; return the names that were not taken over. Raises SandboxError."""
    try:
        members = await asyncio.to_thread(_members, changes.archive)
    except tarfile.TarError as cause:
        msg = f"damaged archive of changes: {cause}"
        raise SandboxError(msg) from cause
    dropped = {name for name, starts in members.items() if starts}
    doubts = await asyncio.to_thread(_doubts, {*members, *changes.removed} - dropped, sandbox.workdir.strip("/"))
    dropped |= await _kept_out(sandbox, doubts)
    if dropped:
        archive = await asyncio.to_thread(_without, changes.archive, dropped)
        changes = structs.replace(changes, archive=archive, removed=tuple(name for name in changes.removed if name not in dropped))
    await sandbox.apply(changes)
    return tuple(sorted(dropped))


async def _kept_out(sandbox: Sandbox, doubts: Iterable[Doubt]) -> set[str]:
    """Return the names of the changes that are kept out. Raises SandboxError."""
    left, out = iter(doubts), set[str]()

    async def look() -> None:
        for doubt in left:  # which all lookers share
            if any([await _has(sandbox, place) for place in doubt.places]) is doubt.out_if_there:
                out.add(doubt.name)

    async with Tasks() as tasks:
        for _ in range(AT_ONCE):
            tasks.create_task(look())
    return out


def _doubts(names: Iterable[str], workdir: str) -> list[Doubt]:
    """Return the changes that the image decides on: an agent may leave many that it does not. Blocks."""
    doubts = []
    for name in sorted(names):
        if (runner := _runner(name, workdir)) is not None:
            doubts.append(Doubt(name, [runner], out_if_there=False))  # a repository of the runner's own is the agent's work
        elif _is_systems(name, workdir):
            doubts.append(Doubt(name, _twins(name), out_if_there=True))
    return doubts


def _members(archive: bytes) -> dict[str, bool]:
    """Return the names in an archive, folders apart, with whether each starts something by itself. Raises tarfile.TarError. Blocks."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {member.name: _starts(tar, member) for member in tar if not member.isdir() or member.name in SYSTEM_PLACES}


def _starts(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bool:
    if member.name in SYSTEM_PLACES or START_UP.search(member.name):
        return True
    pattern = IMPORT_LINE if member.name.endswith(".pth") else PYTEST_PLUGIN if member.name.endswith("/entry_points.txt") else None
    if pattern is None:
        return False
    content = tar.extractfile(member) if member.isreg() and not member.issparse() else None
    return content is None or re.search(pattern, content.read(TEXT_BYTES)) is not None


def _runner(name: str, workdir: str) -> str | None:
    """Return the place of a module that would be the test runner's, if the name is of one in the working directory."""
    if not name.startswith(f"{workdir}/"):
        return None
    first = name.removeprefix(f"{workdir}/").partition("/")[0]
    return f"/{workdir}/{first}" if first.removesuffix(".py") in RUNNERS else None


def _is_systems(name: str, workdir: str) -> bool:
    in_system = name.partition("/")[0] in SYSTEM_PLACES and not name.startswith(f"{workdir}/")
    return in_system and PACKAGES.search(name) is None


def _twins(name: str) -> list[str]:
    """Return the places whose program a name would replace: itself, and those of the same name elsewhere in PATH."""
    folder, _, last = name.rpartition("/")
    return [f"/{one}/{last}" for one in PROGRAMS] if folder in PROGRAMS else [f"/{name}"]


async def _has(sandbox: Sandbox, place: str) -> bool:
    try:
        return await sandbox.read(place, 0) is not None
    except NotAFile:  # something is there
        return True


def _without(archive: bytes, dropped: set[str]) -> bytes:
    """Return an archive without some of its members, and without what is below them. Blocks."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar, tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as kept:
        for member in tar:
            if member.name not in dropped and not any(str(above) in dropped for above in PurePosixPath(member.name).parents):
                kept.addfile(member, tar.extractfile(member) if member.isreg() else None)
    return buffer.getvalue()
