"""The sandbox port: where a harness or a grader runs.

A place is an absolute path as a container has it (`/app/answer.txt`), for every backend. `Sandbox.inside` returns the path by which a
program in the sandbox finds the place: the same path in a container, another one in `local`, which has no mount namespace.
"""

import socket
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final, Protocol

from msgspec import Struct

from evener.proto.errors import EvenerError, Recoverable
from evener.proto.sandbox import SandboxSpec

LOOPBACK: Final = "127.0.0.1"
WORKDIR: Final = "/app"
"""The working directory of a task that names none."""
HOME: Final = "/home/agent"
TEMPORARY: Final = "/tmp"  # noqa: S108 - a place in the sandbox, not a file of ours
TESTS: Final = "/tests"
SOLUTION: Final = "/solution"
LOGS: Final = "/logs"
VERIFIER_LOGS: Final = f"{LOGS}/verifier"
AGENT_LOGS: Final = f"{LOGS}/agent"
ARTIFACTS: Final = f"{LOGS}/artifacts"
BUNDLES: Final = "/opt/evener"
"""Folders of this machine are mounted below it."""

OOM_SCORE: Final = 100
"""When memory ends, programs of sandboxes are killed first. That root writes this score makes it the least that they can set themselves."""
SIGNALLED: Final = range(129, 160)
"""The exit codes by which containers and shells tell that a signal ended a program."""
ANY_SANDBOX: Final = SandboxSpec()
"""Asks for nothing in particular."""
UNTRACKED: Final = (HOME, TEMPORARY, TESTS, SOLUTION, VERIFIER_LOGS, BUNDLES)
"""Places whose files are never part of `Changes`: a harness's own state, what grading brings, and what is mounted."""


class SandboxError(EvenerError):
    """Look at the sandbox backend: its folder, its permissions, the free space on its disk."""


class SandboxLost(SandboxError, Recoverable):
    """The sandbox failed while its program ran. Another attempt may succeed."""


class SandboxHeld(SandboxError):
    """Another process keeps its sandboxes in this folder. Stop it, or give this process another state folder or instance name."""


class ImageMissing(SandboxError):
    """Pull or import the image on the runner's machine, or correct its name or its Dockerfile."""


class Unstartable(SandboxError):
    """Change the arguments or variables: no program can be started with them."""


class ProgramMissing(Unstartable):
    """Install the program, or give its full path. It is looked up in the sandbox's own PATH."""


class ChangesTooLarge(SandboxError):
    """The program left more than is kept. Let it work in its home or in /tmp, or raise the runner's limits `changes_...`."""


class SandboxRemoved(SandboxError):
    """The program removed or moved its own sandbox. Nothing of its work is left to keep."""


class NotAFile(SandboxError):
    """The place holds a link, a pipe, a folder, or a file above the limit, which is not read. Let the task write a plain file there."""


class Changes(Struct, frozen=True, kw_only=True):
    """What a program changed, relative to the state in which it found the sandbox."""

    archive: bytes
    """A deterministic tar of new and changed files, directories and links. Names are places without the leading slash."""
    removed: tuple[str, ...] = ()
    """The names of removed files, directories and links, sorted."""
    replaced: tuple[str, ...] = ()
    """The names of files and links in the archive that were there before, with another content."""
    excluded: Mapping[str, str] = {}
    """The first names that exist but are not in the archive, each with the reason. Entries below such a directory are not named."""
    excluded_count: int = 0
    """The number of all omitted entries."""


class ChangeLimits(Struct, frozen=True, kw_only=True):
    """How much of a sandbox's changes is kept. Beyond a limit nothing is kept: ChangesTooLarge."""

    bytes: int = 256 * 1024 * 1024
    """The limit of new and changed files together, checked before any of them is read."""
    entries: int = 50_000
    """The limit of named entries in the whole sandbox."""
    seconds: float = 120.0
    """The time limit for reading the changes."""


class Program(Struct, frozen=True, kw_only=True):
    """A program to run in a sandbox. It sees the sandbox's own environment plus `environment`, and nothing of the runner's."""

    argv: Sequence[str]
    environment: Mapping[str, str] = {}
    user: str | None = None
    """The name or id of the user it runs as. None: the sandbox's."""
    log_bytes: int = 1 << 20
    """How much of its output (stdout and stderr together) is kept: half from the beginning, half from the end."""


class Process(Protocol):
    """A running program, with everything that it starts."""

    async def wait(self) -> int:
        """Wait for the program's end; return its exit code, negative for a signal. Processes that it left running are killed."""
        ...

    async def end(self, grace_seconds: float = 2.0) -> int:
        """End the program and everything that it started: ask first, kill after `grace_seconds`. Return the exit code."""
        ...

    def log(self) -> bytes:
        """Return the output so far, cut as `Program.log_bytes` says."""
        ...


class Sandbox(Protocol):
    """One sandbox. Its files are removed when its context ends."""

    @property
    def workdir(self) -> str:
        """The place of the working directory."""
        ...

    def inside(self, place: str) -> str:
        """Return the path by which a program inside the sandbox finds a place."""
        ...

    async def warm(self) -> None:
        """Do ahead what the first `listen` or `start` would do. Nothing of a session is in the sandbox afterwards. Raises SandboxError."""
        ...

    async def usable(self) -> bool:
        """Return whether the sandbox is as it was left, although nothing has run in it for a while. Raises SandboxError."""
        ...

    async def bring(self, folder: Path, place: str) -> None:
        """Copy a folder's content to a place, replacing files of the same names. Raises SandboxError."""
        ...

    async def write(self, files: Mapping[str, bytes]) -> None:
        """Write files, given by place. Raises SandboxError."""
        ...

    async def apply(self, changes: Changes) -> None:
        """Apply the changes of another sandbox. Raises SandboxError for names that leave the sandbox or lead to untracked places."""
        ...

    async def settle(self) -> None:
        """Remember the current state, to which `changes` is relative."""
        ...

    async def check_room(self) -> None:
        """Raise SandboxLost if the sandbox's disk, as far as it is known, has so little room that a program may fail for that."""
        ...

    async def start(self, program: Program) -> Process:
        """Start a program in the working directory with its stdin closed. Raises SandboxError."""
        ...

    async def changes(self, limits: ChangeLimits) -> Changes:
        """Return what changed since `settle`. No program may be running. Raises ChangesTooLarge, SandboxRemoved, SandboxError."""
        ...

    async def read(self, place: str, limit_bytes: int = 1 << 20) -> bytes | None:
        """Return a file's content. None: nothing is there. Raises NotAFile for anything but a regular file within the limit."""
        ...

    async def listen(self) -> socket.socket:
        """Return a listening socket that only programs in this sandbox reach, at the address that it is bound to.

        It serves the next program: a listener does not outlive the program that is started after it. Raises SandboxError.
        """
        ...


class Sandboxes(Protocol):
    """A sandbox backend. Opening it removes what a dead process of the same kind left, before anything new starts."""

    def trouble(self) -> str:
        """Return why no sandbox can be opened now. Empty: nothing is known against it. It takes no longer than a look at a folder."""
        ...

    def open(self, name: str, spec: SandboxSpec = ANY_SANDBOX) -> AbstractAsyncContextManager[Sandbox]:
        """Open a fresh sandbox under a name that is unique among the open ones. Raises SandboxError, ImageMissing."""
        ...
