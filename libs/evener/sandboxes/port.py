"""The sandbox port: where a harness or a grader runs.

Places are absolute paths as a container has them (`/app/answer.txt`), whatever the backend: `Sandbox.inside` says where a
program in the sandbox finds a place. A container finds it where it is; `local` has no mount namespace and maps it.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final, Protocol

from msgspec import Struct

from evener.proto.errors import EvenerError, Recoverable

WORKDIR: Final = "/app"
"""The working directory of a task that names none."""
HOME: Final = "/home/agent"
TEMPORARY: Final = "/tmp"  # noqa: S108 - a place in the sandbox, not a file of ours
TESTS: Final = "/tests"
VERIFIER_LOGS: Final = "/logs/verifier"
AGENT_LOGS: Final = "/logs/agent"
ARTIFACTS: Final = "/logs/artifacts"

UNTRACKED: Final = (HOME, TEMPORARY, TESTS, VERIFIER_LOGS)
"""Places whose files are never part of `Changes`: a harness's own state, and what grading brings."""


class SandboxError(EvenerError):
    """Look at the sandbox backend: its folder, its rights, the free space on its disk."""


class SandboxLost(SandboxError, Recoverable):
    """The sandbox failed under its program. Another attempt may go through."""


class SandboxHeld(SandboxError):
    """Another process keeps its sandboxes in this folder. Stop that one, or give this one another state folder or instance name."""


class Unstartable(SandboxError):
    """Change its arguments or variables: no program can be started with them."""


class ProgramMissing(Unstartable):
    """Install the program, or name it by its whole path. It is looked for in the sandbox's own PATH."""


class ChangesTooLarge(SandboxError):
    """The program left more than is kept. Have it work in its home or in /tmp, or raise the runner's limits `changes_...`."""


class SandboxRemoved(SandboxError):
    """The program removed or moved its own sandbox. Nothing of its work is left to keep."""


class NotAFile(SandboxError):
    """A place holds something that is not read: a link, a pipe, a folder, or a file above the limit. Have a plain file written there."""


class Changes(Struct, frozen=True, kw_only=True):
    """What a program left, relative to the state in which it found the sandbox."""

    archive: bytes
    """A deterministic tar of new and changed files, directories and links; names are places without the leading slash."""
    removed: tuple[str, ...] = ()
    """Names of files, directories and links that are gone, sorted."""
    left_out: Mapping[str, str] = {}
    """Names that are not in the archive although something is there, and why: the first of them. What lies below such a directory is not
    named."""
    left_out_count: int = 0
    """Of all that are left out."""


class ChangeLimits(Struct, frozen=True, kw_only=True):
    """What of a sandbox's changes is kept. Beyond a limit nothing is: ChangesTooLarge."""

    bytes: int = 256 * 1024 * 1024
    """Of new and changed files together, before any of them is read."""
    entries: int = 50_000
    """Of the whole sandbox: whatever has a name."""
    seconds: float = 120.0
    """For reading them."""


class Program(Struct, frozen=True, kw_only=True):
    """What to run in a sandbox. It sees the sandbox's own environment, then `environment`, and nothing of ours."""

    argv: Sequence[str]
    environment: Mapping[str, str] = {}
    log_bytes: int = 1 << 20
    """Of its output (stdout and stderr together) so much is kept: the first half from the start, the rest from the end."""


class Process(Protocol):
    """A running program and all that it starts."""

    async def wait(self) -> int:
        """Wait for its end; return the exit code, negative for a signal. What it left running is killed."""
        ...

    async def end(self, grace_seconds: float = 2.0) -> int:
        """End it and all that it started: ask first, kill after `grace_seconds`. Return the exit code."""
        ...

    def log(self) -> bytes:
        """Return its output so far, cut as `Program.log_bytes` says."""
        ...


class Sandbox(Protocol):
    """One sandbox. Its files are gone when its context ends."""

    @property
    def workdir(self) -> str:
        """The working directory, as a program inside finds it."""
        ...

    def inside(self, place: str) -> str:
        """Return the path by which a program inside finds a place."""
        ...

    async def bring(self, folder: Path, place: str) -> None:
        """Copy a folder's content to a place, over what is there. Raises SandboxError."""
        ...

    async def write(self, files: Mapping[str, bytes]) -> None:
        """Write files, by place. Raises SandboxError."""
        ...

    async def apply(self, changes: Changes) -> None:
        """Make the changes of another sandbox here. Names that lead out of it, or to untracked places, are refused: SandboxError."""
        ...

    async def settle(self) -> None:
        """Remember the state: `changes` is relative to it."""
        ...

    async def start(self, program: Program) -> Process:
        """Start a program in the working directory, its stdin closed. Raises SandboxError."""
        ...

    async def changes(self, limits: ChangeLimits) -> Changes:
        """Return what changed since `settle`. No program may run. Raises ChangesTooLarge, SandboxRemoved, SandboxError."""
        ...

    async def read(self, place: str, limit_bytes: int = 1 << 20) -> bytes | None:
        """Return a file's content. None: nothing is there. Raises NotAFile for anything else than a regular file within the limit."""
        ...


class Sandboxes(Protocol):
    """A backend. Opening it removes what a dead process left of the same kind, before anything new starts."""

    def open(self, name: str, *, workdir: str = WORKDIR) -> AbstractAsyncContextManager[Sandbox]:
        """Open a fresh sandbox under a name that is unique among the open ones. Raises SandboxError."""
        ...
