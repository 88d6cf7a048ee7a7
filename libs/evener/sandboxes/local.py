"""The `local` backend: a plain process with its own home and working directory, for trusted tasks, the demo and tests.

It protects nothing: the program has the rights of the user who runs Evener, and it reaches the network. A sandbox is a folder
`<root>/<name>` that mirrors the paths of a container: `/app` is `<root>/<name>/app`, and so on. There is no mount namespace, so the text
files of a task's tests are rewritten when they are brought in: in the copy, the sandbox's own path replaces `/tests`, `/logs/verifier`,
`/logs/agent`, `/logs/artifacts` or the working directory at the beginning of a path. Paths that a test composes at run time are not
rewritten. The root must contain no character that a shell would split.
"""

import asyncio
import errno
import functools
import os
import re
import shutil
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import structlog
from msgspec import Struct

from evener.proto.sandbox import NetworkMode, SandboxSpec
from evener.runtime.disk import is_full
from evener.runtime.file_errors import is_of_files
from evener.sandboxes import processes
from evener.sandboxes.apply_changes import apply, make_folder
from evener.sandboxes.changes import State, changes_since, state_of
from evener.sandboxes.config import ROOM_BYTES
from evener.sandboxes.folders import descend, open_file, opened
from evener.sandboxes.hold import held
from evener.sandboxes.home import home_variables
from evener.sandboxes.port import (
    AGENT_LOGS,
    ANY_SANDBOX,
    ARTIFACTS,
    HOME,
    LOOPBACK,
    SOLUTION,
    TEMPORARY,
    TESTS,
    UNTRACKED,
    VERIFIER_LOGS,
    WORKDIR,
    ChangeLimits,
    Changes,
    NotAFile,
    Process,
    Program,
    SandboxError,
    SandboxLost,
    SandboxRemoved,
)
from evener.sandboxes.processes import LocalProcess
from evener.sandboxes.removal import Removal
from evener.sandboxes.tracked import tracked
from evener.sandboxes.work import FileWork, file_work

SCRIPTS: Final = frozenset({".bash", ".cfg", ".ini", ".js", ".json", ".py", ".rb", ".sh", ".toml", ".txt", ".yaml", ".yml", ""})
"""The extensions of the test files in which paths are rewritten."""
SCRIPT_BYTES: Final = 1 << 20
"""Larger files count as data."""
UNSAFE: Final = re.compile(r"[^\w./@%+=:,-]")
"""Matches characters that a shell would split or interpret."""
log = structlog.get_logger()


class LocalTimings(Struct, frozen=True, kw_only=True):
    """Times of the `local` backend."""

    start_seconds: float = 2.0
    """How long a start waits for the removal of old sandboxes."""
    close_seconds: float = 5.0
    """How long closing a sandbox waits for the removal of its files, which then continues in the background."""
    keeper_seconds: float = 15.0
    """A keeper that should kill its program and has not ended after this time is killed itself."""


LOCAL_TIMINGS: Final = LocalTimings()


class LocalSandbox:
    """A folder, and the programs that run in it."""

    def __init__(self, folder: Path, spec: SandboxSpec, work: FileWork, timings: LocalTimings, *, free_bytes: int = ROOM_BYTES) -> None:
        """`free_bytes`: what the disk must have free for programs."""
        self._free_bytes = free_bytes
        self.workdir = spec.workdir or WORKDIR
        self._folder = folder
        self._timings = timings
        self._work = work
        self._started: list[LocalProcess] = []
        self._places = (self.workdir, HOME, TEMPORARY, TESTS, VERIFIER_LOGS, AGENT_LOGS, ARTIFACTS)
        self._mounts = {mount.place: mount.source for mount in spec.mounts}
        self._state: State = {}

    def inside(self, place: str) -> str:
        return self._mounts.get(place) or str(self._path(place))

    async def warm(self) -> None:
        """Nothing is to be done."""

    async def usable(self) -> bool:
        return await self._work.files.begin(self._is_there)

    async def bring(self, folder: Path, place: str) -> None:
        with door(f"cannot copy {folder} to {place}"):
            await self._work.files.begin(self._bring, folder, place)

    async def write(self, files: Mapping[str, bytes]) -> None:
        with door("cannot write the harness's files"):
            await self._work.files.begin(self._write, files)

    async def apply(self, changes: Changes) -> None:
        with door("cannot apply changes"):
            await self._work.files.begin(self._apply, changes)

    async def settle(self) -> None:
        with door("cannot read the prepared files"):
            self._state = await self._work.files.begin(state_of, self._folder, tracked)

    async def check_room(self) -> None:
        root = self._folder.parent  # also if the program has removed its sandbox
        with door(f"cannot look at the disk of {root}"):
            free = (await self._work.files.begin(shutil.disk_usage, root)).free
        if free < self._free_bytes:
            msg = f"the disk of {root} has {free} bytes free, less than the {self._free_bytes} that programs need"
            raise SandboxLost(msg)

    async def start(self, program: Program) -> Process:
        environment = {**self._environment(), **program.environment}
        process = await processes.start(
            program.argv,
            environment=environment,
            folder=self._path(self.workdir),
            marker=str(self._folder),
            log_bytes=program.log_bytes,
            sweep=self._sweep,
            keeper_seconds=self._timings.keeper_seconds,
        )
        self._started.append(process)
        return process

    async def changes(self, limits: ChangeLimits) -> Changes:
        with door("cannot read the changed files"):
            if not await self._work.files.begin(self._is_there):
                msg = f"{self._folder} is gone"
                raise SandboxRemoved(msg)
            return await self._work.files.begin(changes_since, self._folder, self._state, tracked, limits, self._work.called_off)

    async def read(self, place: str, limit_bytes: int = 1 << 20) -> bytes | None:
        with door(f"cannot read {place}"):
            return await self._work.files.begin(self._read, place, limit_bytes)

    async def listen(self) -> socket.socket:
        with door("cannot listen"):
            return socket.create_server((LOOPBACK, 0))

    def make(self) -> None:
        """Create the folder and its places. Blocks."""
        self._folder.mkdir(parents=True)
        for place in self._places:
            self._path(place).mkdir(parents=True, exist_ok=True)

    async def stop(self) -> None:
        """End everything that runs in the sandbox."""
        for process in self._started:
            if not process.ended:
                await process.end(grace_seconds=0)
        await self._sweep()

    async def _sweep(self) -> None:
        await self._work.files.begin(processes.kill_marked, lambda folder: folder == str(self._folder))

    def _path(self, place: str) -> Path:
        return self._folder / place.removeprefix("/")

    def _is_there(self) -> bool:
        return self._folder.is_dir() and not self._folder.is_symlink()

    def _environment(self) -> dict[str, str]:
        return {"PATH": os.environ.get("PATH", os.defpath), **home_variables(self.inside(HOME), self.inside(TEMPORARY))}

    def _bring(self, folder: Path, place: str) -> None:
        target = self._path(place)
        shutil.copytree(folder, target, symlinks=True, dirs_exist_ok=True)
        if place in {TESTS, SOLUTION}:
            self._rewrite_scripts(target)

    def _rewrite_scripts(self, folder: Path) -> None:
        """Replace container paths in the test files by the sandbox's own."""
        shown = [place for place in (*self._places, SOLUTION) if place not in {HOME, TEMPORARY, "/"}]
        pattern = re.compile(rb"(?<![\w.\-/}~)*\]])(?:" + b"|".join(re.escape(place.encode()) for place in shown) + rb")(?![\w\-])")
        for path in folder.rglob("*"):
            if path.is_symlink() or not path.is_file() or path.suffix not in SCRIPTS or path.stat().st_size > SCRIPT_BYTES:
                continue
            text = path.read_bytes()
            rewritten = pattern.sub(lambda found: self.inside(found.group().decode()).encode(), text)
            if rewritten != text:
                path.write_bytes(rewritten)

    def _write(self, files: Mapping[str, bytes]) -> None:
        for place, content in files.items():
            path = self._path(place)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def _apply(self, changes: Changes) -> None:
        """Apply the changes, then restore the sandbox's places and make sure that none of its own is a link."""
        apply(self._folder, changes, tracked)
        with opened(self._folder) as root:
            for place in UNTRACKED:
                make_folder(root, Path(place).parts[1:])
        for place in self._places:
            self._path(place).mkdir(parents=True, exist_ok=True)

    def _read(self, place: str, limit_bytes: int) -> bytes | None:
        *above, last = Path(place).parts[1:]
        try:
            with opened(self._folder) as root, descend(root, tuple(above)) as folder:
                descriptor = open_file(last, folder)
        except FileNotFoundError:
            return None
        except OSError as cause:
            if not is_of_files(cause):
                raise
            msg = f"{place} is not read: {'a link' if cause.errno == errno.ELOOP else cause.strerror}"
            raise NotAFile(msg) from cause
        with os.fdopen(descriptor, "rb") as file:
            content = file.read(limit_bytes + 1)
        if len(content) > limit_bytes:
            msg = f"{place} is not read: more than {limit_bytes} bytes"
            raise NotAFile(msg)
        return content


MakeSandbox = Callable[[Path, SandboxSpec, FileWork, LocalTimings], LocalSandbox]
"""Returns a sandbox that is kept in a folder."""


class LocalSandboxes:
    """The backend over one root folder, opened by `open_local`."""

    def __init__(self, root: Path, work: FileWork, timings: LocalTimings, made: MakeSandbox) -> None:
        self._root = root
        self._made = made
        self._timings = timings
        self._work = work
        self._removal = Removal(root, work)
        self._closing: set[asyncio.Task[None]] = set()

    def trouble(self) -> str:
        if not os.access(self._root, os.W_OK | os.X_OK):
            return f"{self._root} is gone, or cannot be written"
        return f"the disk of {self._root} is full" if is_full(self._root) else ""

    @asynccontextmanager
    async def open(self, name: str, spec: SandboxSpec = ANY_SANDBOX) -> AsyncIterator[LocalSandbox]:
        sandbox = self._made(self._root / name, spec, self._work, self._timings)
        try:
            with door(f"cannot make a sandbox in {self._root}"):
                await self._work.files.begin(sandbox.make)
            yield sandbox
        finally:
            closing = asyncio.create_task(self._close(sandbox, name))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            await asyncio.shield(closing)

    async def reap(self) -> None:
        """Kill every process of a sandbox below the root, and set the sandboxes aside for removal. Raises OSError."""
        await self._work.files.begin(processes.kill_marked, lambda folder: Path(folder).parent == self._root)
        await asyncio.wait([await self._removal.take_all()], timeout=self._timings.start_seconds)

    async def closed(self) -> None:
        """Wait until the sandboxes that are closing are closed."""
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def _close(self, sandbox: LocalSandbox, name: str) -> None:
        await sandbox.stop()
        try:
            removed = await self._removal.take(name)
        except FileNotFoundError:
            return
        except OSError as cause:
            log.warning("sandbox_not_removed", folder=str(self._root / name), error=str(cause), mend="the next start tries again")
            return
        await asyncio.wait([removed], timeout=self._timings.close_seconds)


@asynccontextmanager
async def open_local(root: Path, timings: LocalTimings = LOCAL_TIMINGS, *, free_bytes: int = ROOM_BYTES) -> AsyncIterator[LocalSandboxes]:
    """Open the backend on a folder of its own. What a dead process left there is killed, set aside, and removed in the background.

    Raises SandboxHeld if a living process has the folder open, and SandboxError if the folder cannot be used.
    """
    root = await asyncio.to_thread(root.resolve)
    if found := UNSAFE.search(str(root)):
        msg = f"sandboxes cannot be kept in {root}: {found[0]!r} in its path would break the shell scripts of tests. Keep them elsewhere"
        raise SandboxError(msg)
    async with open_folders(root, timings, functools.partial(LocalSandbox, free_bytes=free_bytes)) as sandboxes:
        yield sandboxes


@asynccontextmanager
async def open_folders(root: Path, timings: LocalTimings, made: MakeSandbox) -> AsyncIterator[LocalSandboxes]:
    """Open a backend whose sandboxes are folders. Raises SandboxHeld, SandboxError."""
    root = await asyncio.to_thread(root.resolve)
    async with AsyncExitStack() as stack:
        with door(f"cannot keep sandboxes in {root}"):
            stack.enter_context(held(root))
            sandboxes = LocalSandboxes(root, await stack.enter_async_context(file_work()), timings, made)
            await sandboxes.reap()
        stack.push_async_callback(sandboxes.closed)
        yield sandboxes


def lacks(spec: SandboxSpec) -> tuple[str, ...]:
    """Return what a plain process cannot give, in words. Limits are not enforced, which is no reason to refuse a task."""
    wanted = {
        "an image of its own": spec.image is not None,
        "limited network access": spec.network is not None and spec.network.mode is not NetworkMode.PUBLIC,
        "a user of its own": spec.user is not None and not spec.drops_rights,
        "tests that drop their rights": spec.drops_rights,
    }
    return tuple(want for want, is_wanted in wanted.items() if is_wanted)


@contextmanager
def door(doing: str) -> Iterator[None]:
    """Raise what the file system refuses as SandboxError."""
    try:
        yield
    except (OSError, shutil.Error) as cause:
        msg = f"{doing}: {cause}"
        raise SandboxError(msg) from cause
