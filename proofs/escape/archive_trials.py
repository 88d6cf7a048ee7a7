"""Attempts by what an agent leaves, and by archives of changes that are not what they seem.

Without the defence archives are made and unpacked naively: by `tarfile`, or by the Docker daemon as they are.
"""

import asyncio
import io
import stat
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from proofs.escape.attempt import ESCAPED
from proofs.escape.backends import BUBBLEWRAP, DOCKER, open_backend, open_docker_backend
from proofs.escape.trial import Place, Trial

from evener.sandboxes.docker_api import open_docker
from evener.sandboxes.docker_files import ContainerFiles
from evener.sandboxes.port import VERIFIER_LOGS, ChangeLimits, Changes, NotAFile, Program, Sandbox, SandboxError

BOTH: Final = (DOCKER, BUBBLEWRAP)
REWARD: Final = f"{VERIFIER_LOGS}/reward.txt"
PLANTED: Final = "planted"
GO_DEVICE: Final = 1 << 26
GO_SET_UID: Final = 1 << 23
"""Go's bits in the mode of an entry."""
BIG_BYTES: Final = 64 << 20
KEPT: Final = ChangeLimits(bytes=1 << 20, entries=500, seconds=60)
MANY: Final = 2_000
DEEPEST: Final = 100
"""The folders in each other that are kept."""

Entry = tuple[str, dict[str, Any], bytes]


def _tar(*entries: Entry) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, fields, content in entries:
            member = tarfile.TarInfo(name)
            member.mode, member.size = 0o644, len(content)
            for field, value in fields.items():
                setattr(member, field, value)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


class Opened(Struct, frozen=True, kw_only=True):
    """A sandbox, as it is seen from this machine."""

    sandbox: Sandbox
    root: Path
    """The folder of this machine that is its root. There is none in Docker."""
    container: ContainerFiles | None
    """The files of its container."""
    place: Place

    async def unpacked(self, archive: bytes) -> str:
        """Unpack an archive of changes; return what stood against it."""
        try:
            if self.place.defended:
                await self.sandbox.apply(Changes(archive=archive))
            elif self.container is not None:
                await self.container.put(archive)
            else:
                with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
                    await asyncio.to_thread(tar.extractall, self.root, filter="fully_trusted")
        except (SandboxError, tarfile.TarError, OSError) as refused:
            return str(refused)
        return "it was unpacked, and did nothing"

    async def mode(self, name: str) -> int:
        """Return the mode of an entry, as `stat` has it. 0: there is none."""
        if self.container is None:
            path = self.root / name
            return path.lstat().st_mode if path.exists() else 0
        mode = await self.container.mode(f"/{name}") or 0
        return (stat.S_IFCHR if mode & GO_DEVICE else stat.S_IFREG) | (stat.S_ISUID if mode & GO_SET_UID else 0)

    async def archive(self, name: str) -> bytes:
        """Return a tar of an entry, made naively."""
        if self.container is not None:
            return await self.container.archive(f"/{name}", 1 << 40) or b""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            tar.add(self.root / name, arcname=name)
        return buffer.getvalue()


@asynccontextmanager
async def _opened(place: Place) -> AsyncIterator[Opened]:
    root = place.world.folder / "sandboxes" / place.kind / "attempt"
    if place.kind == DOCKER:
        bound = None if place.defended else {"Binds": ["{folder}:{folder}"]}
        address = f"unix://{place.world.docker}"
        async with (
            open_docker(address) as docker,
            open_docker_backend(place.world, bound) as contained,
            contained.open("attempt") as sandbox,
        ):
            (listed,) = await docker.get("/containers/json", all="true", filters='{"name": ["-attempt"]}')
            yield Opened(sandbox=sandbox, root=root, container=ContainerFiles(docker, listed["Id"]), place=place)
    else:
        async with open_backend(place.world, place.kind) as isolated, isolated.open("attempt") as sandbox:
            yield Opened(sandbox=sandbox, root=root, container=None, place=place)


async def _by_archive(made: Callable[[Path], bytes], did: Callable[[Opened], Awaitable[bool]], place: Place) -> str:
    folder = place.world.folder / f"host-{place.kind}"
    await asyncio.to_thread(_emptied, folder)
    async with _opened(place) as opened:
        said = await opened.unpacked(made(folder))
        return ESCAPED if await did(opened) else said


def _emptied(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    (folder / PLANTED).unlink(missing_ok=True)


async def _planted(opened: Opened) -> bool:
    return (opened.place.world.folder / f"host-{opened.place.kind}" / PLANTED).exists()


async def _device(opened: Opened) -> bool:
    return stat.S_ISCHR(await opened.mode("app/null"))


async def _set_uid(opened: Opened) -> bool:
    return bool(await opened.mode("app/id") & stat.S_ISUID)


async def _reward(opened: Opened) -> bool:
    return await opened.sandbox.read(REWARD) == b"1"


async def _bomb(opened: Opened) -> bool:
    try:
        return len(await opened.sandbox.read("/app/bomb", BIG_BYTES) or b"") == BIG_BYTES
    except NotAFile:
        return True


def _through_a_link(folder: Path) -> bytes:
    return _tar(("app/out", {"type": tarfile.SYMTYPE, "linkname": str(folder)}, b""), (f"app/out/{PLANTED}", {}, b"x"))


def _above(folder: Path) -> bytes:
    return _tar((f"../../../../../../../../../..{folder}/{PLANTED}", {}, b"x"))


def _sparse(_: Path) -> bytes:
    """Return a member of 64 MB in 2 KB, as GNU tar writes it."""
    sparse = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "app/bomb", "GNU.sparse.realsize": str(BIG_BYTES)}
    return _tar(("app/bomb", {"pax_headers": sparse}, b"1\n0\n0\n".ljust(512, b"\0")))


async def _left(code: str, did: Callable[[bytes], bool], kept: str, place: Place) -> str:
    """Let an agent leave something; judge the changes that are kept of it. Without the defence: what a naive archive has."""
    async with _opened(place) as opened:
        await opened.sandbox.settle()
        process = await opened.sandbox.start(Program(argv=("python3", "-c", place.world.program(code))))
        await process.wait()
        try:
            changes = await opened.sandbox.changes(KEPT) if place.defended else None
        except SandboxError as refused:
            return str(refused)
        archive = await opened.archive(kept) if changes is None else changes.archive
        return ESCAPED if did(archive) else "nothing of it is kept"


def _names(archive: bytes) -> list[tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return tar.getmembers()


def _is_large(archive: bytes) -> bool:
    return len(archive) > BIG_BYTES


def _has_many(archive: bytes) -> bool:
    return len(_names(archive)) > MANY


def _is_deep(archive: bytes) -> bool:
    return any(member.name.count("/") > DEEPEST for member in _names(archive))


def _has_special(archive: bytes) -> bool:
    return any(member.isfifo() or member.isdev() for member in _names(archive))


async def _link_as_reward(place: Place) -> str:
    """Leave a link to a file of this machine where the runner reads a reward."""
    code = f"os.symlink(SECRET, {REWARD!r})"
    async with _opened(place) as opened:
        await (await opened.sandbox.start(Program(argv=("python3", "-c", place.world.program(code))))).wait()
        if not place.defended:
            reader = await opened.sandbox.start(Program(argv=("cat", REWARD))) if opened.container else None
            found = (opened.root / REWARD[1:]).read_bytes() if reader is None else b""
            if reader is not None:
                await reader.wait()
                found = reader.log()
            return ESCAPED if found == b"secret" else "it was not read"
        try:
            return ESCAPED if await opened.sandbox.read(REWARD) == b"secret" else "it was not read"
        except NotAFile as refused:
            return str(refused)


def archived(name: str, made: Callable[[Path], bytes], did: Callable[[Opened], Awaitable[bool]], kinds: tuple[str, ...] = BOTH) -> Trial:
    """Return the attempt to have an archive unpacked."""
    return Trial(name=name, tried=partial(_by_archive, made, did), kinds=kinds)


def left(name: str, code: str, did: Callable[[bytes], bool], kept: str) -> Trial:
    """Return the attempt to leave something in a folder or file of this name."""
    return Trial(name=name, tried=partial(_left, code, did, kept))


ARCHIVE_TRIALS: Final = (
    archived("a link to a host's folder in the archive, and a file through it", _through_a_link, _planted),
    archived("a name above the root in the archive", _above, _planted, (BUBBLEWRAP,)),
    archived(
        "a device in the archive",
        lambda _: _tar(("app/null", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3}, b"")),
        _device,
    ),
    archived("a set-uid program in the archive", lambda _: _tar(("app/id", {"mode": 0o4755}, b"#!/bin/sh\n")), _set_uid),
    archived("a reward in the archive", lambda _: _tar((REWARD[1:], {}, b"1")), _reward),
    archived("a tar bomb: 64 MB in 2 KB", _sparse, _bomb),
    Trial(name="a link to a host's file as the reward", tried=_link_as_reward),
    left("a sparse file", f"open('big', 'w').truncate({BIG_BYTES + 1})", _is_large, "app/big"),
    left(f"{MANY} files", f"os.mkdir('many')\nfor n in range({MANY}): open(f'many/{{n}}', 'w').close()", _has_many, "app/many"),
    left(
        "folders in each other, 900 deep",
        "os.mkdir('d')\nos.chdir('d')\nfor _ in range(900): os.mkdir('d'); os.chdir('d')",
        _is_deep,
        "app/d",
    ),
    left("a pipe that nobody fills", "os.mkdir('pipes'); os.mkfifo('pipes/pipe')", _has_special, "app/pipes"),
)
