"""The `local` backend: a plain process with its own home and working directory, for trusted tasks, the demo and tests.

It protects nothing: the program has the rights of the user who runs Evener, and reaches the network. A sandbox is a folder
`<root>/<name>` that mirrors a container's places: `/app` is `<root>/<name>/app`, and so on. There is no mount namespace, so the
text files of a task's tests are rewritten when they are brought in: where `/tests`, `/logs/verifier`, `/logs/agent`,
`/logs/artifacts` or the working directory begins a path, the sandbox's own path stands in the copy. Paths that a test
puts together at run time are not seen. The root must hold no character that a shell would split.
"""

import asyncio
import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

from evener.sandboxes import processes
from evener.sandboxes.changes import State, apply, changes_since, state_of
from evener.sandboxes.port import (
    AGENT_LOGS,
    ARTIFACTS,
    HOME,
    TEMPORARY,
    TESTS,
    UNTRACKED,
    VERIFIER_LOGS,
    WORKDIR,
    Changes,
    Process,
    Program,
    SandboxError,
    SandboxHeld,
)

LOCK_FILE: Final = ".held"
SCRIPTS: Final = frozenset({".bash", ".cfg", ".ini", ".js", ".json", ".py", ".rb", ".sh", ".toml", ".txt", ".yaml", ".yml", ""})
"""Endings of the test files in which places are rewritten."""
SCRIPT_BYTES: Final = 1 << 20
"""Larger files are data."""
UNSAFE: Final = re.compile(r"[^\w./@%+=:,-]")
"""A shell would split or read it."""


class LocalSandbox:
    """A folder, and what runs in it."""

    def __init__(self, folder: Path, workdir: str) -> None:
        self._folder = folder
        self._places = (workdir, HOME, TEMPORARY, TESTS, VERIFIER_LOGS, AGENT_LOGS, ARTIFACTS)
        self._state: State = {}
        self.workdir = self.inside(workdir)

    def inside(self, place: str) -> str:
        return str(self._path(place))

    async def bring(self, folder: Path, place: str) -> None:
        with door(f"cannot copy {folder} to {place}"):
            await asyncio.to_thread(self._bring, folder, place)

    async def write(self, files: Mapping[str, bytes]) -> None:
        with door("cannot write the harness's files"):
            await asyncio.to_thread(self._write, files)

    async def apply(self, changes: Changes) -> None:
        with door("cannot apply changes"):
            await asyncio.to_thread(apply, self._folder, changes, tracked)

    async def settle(self) -> None:
        with door("cannot read the prepared files"):
            self._state = await asyncio.to_thread(state_of, self._folder, tracked)

    async def start(self, program: Program) -> Process:
        environment = {**self._environment(), **program.environment}
        return await processes.start(
            program.argv,
            environment=environment,
            folder=Path(self.workdir),
            marker=str(self._folder),
            log_bytes=program.log_bytes,
        )

    async def changes(self, limit_bytes: int) -> Changes:
        with door("cannot read the changed files"):
            return await asyncio.to_thread(changes_since, self._folder, self._state, tracked, limit_bytes)

    async def read(self, place: str, limit_bytes: int = 1 << 20) -> bytes | None:
        with door(f"cannot read {place}"):
            return await asyncio.to_thread(self._read, place, limit_bytes)

    def make(self) -> None:
        """Make the folder and its places. Blocks."""
        self._folder.mkdir(parents=True)
        for place in self._places:
            self._path(place).mkdir(parents=True, exist_ok=True)

    def clear(self) -> None:
        """Kill what runs and remove the folder, however the program left its rights. Blocks."""
        processes.kill_marked(lambda folder: folder == str(self._folder))
        for path, _, _ in os.walk(self._folder):
            with contextlib.suppress(OSError):
                Path(path).chmod(0o700)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, place: str) -> Path:
        return self._folder / place.removeprefix("/")

    def _environment(self) -> dict[str, str]:
        home = self.inside(HOME)
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": home,
            "XDG_CONFIG_HOME": f"{home}/.config",
            "XDG_CACHE_HOME": f"{home}/.cache",
            "XDG_DATA_HOME": f"{home}/.local/share",
            "XDG_STATE_HOME": f"{home}/.local/state",
            "TMPDIR": self.inside(TEMPORARY),
            "LANG": "C.UTF-8",
        }

    def _bring(self, folder: Path, place: str) -> None:
        target = self._path(place)
        shutil.copytree(folder, target, symlinks=True, dirs_exist_ok=True)
        if place == TESTS:
            self._rewrite_scripts(target)

    def _rewrite_scripts(self, folder: Path) -> None:
        """Replace the places that begin a path by the sandbox's own."""
        shown = [place for place in self._places if place not in {HOME, TEMPORARY, "/"}]
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

    def _read(self, place: str, limit_bytes: int) -> bytes | None:
        path = self._path(place)
        if path.is_symlink() or not path.is_file() or path.stat().st_size > limit_bytes:
            return None
        return path.read_bytes()


class LocalSandboxes:
    """The backend over one root folder. Made by `open_local`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @asynccontextmanager
    async def open(self, name: str, *, workdir: str = WORKDIR) -> AsyncIterator[LocalSandbox]:
        sandbox = LocalSandbox(self._root / name, workdir)
        try:
            with door(f"cannot make a sandbox in {self._root}"):
                await asyncio.to_thread(sandbox.make)
            yield sandbox
        finally:
            await asyncio.shield(asyncio.to_thread(sandbox.clear))


@asynccontextmanager
async def open_local(root: Path) -> AsyncIterator[LocalSandboxes]:
    """Open the backend on a folder of its own; what a dead process left there is killed and removed first.

    Raises SandboxHeld where a living process has it open, SandboxError where the folder cannot be used.
    """
    root = await asyncio.to_thread(root.absolute)
    if found := UNSAFE.search(str(root)):
        msg = f"sandboxes cannot be kept in {root}: {found[0]!r} in its path would break the shell scripts of tests. Keep them elsewhere"
        raise SandboxError(msg)
    with ExitStack() as stack:
        with door(f"cannot keep sandboxes in {root}"):
            stack.enter_context(held(root))
            await asyncio.to_thread(reap, root)
        yield LocalSandboxes(root)


def reap(root: Path) -> int:
    """Kill every process of a sandbox below `root`, then remove the sandboxes. Return how many processes there were. Blocks."""
    killed = processes.kill_marked(lambda folder: Path(folder).parent == root)
    for folder in root.iterdir():
        if folder.is_dir():
            LocalSandbox(folder, WORKDIR).clear()
    return killed


@contextmanager
def held(root: Path) -> Iterator[None]:
    """Hold the folder; the kernel lets it go when this process dies."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / LOCK_FILE).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as cause:
            msg = f"the sandboxes in {root} belong to a process that runs"
            raise SandboxHeld(msg) from cause
        yield


def tracked(name: str) -> bool:
    """Return whether a name (a place without its leading slash) can be part of changes."""
    return not any(f"/{name}" == place or f"/{name}".startswith(f"{place}/") for place in UNTRACKED)


@contextmanager
def door(doing: str) -> Iterator[None]:
    """Name what the file system refuses."""
    try:
        yield
    except (OSError, shutil.Error) as cause:
        msg = f"{doing}: {cause}"
        raise SandboxError(msg) from cause
