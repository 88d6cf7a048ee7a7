"""Tables of task.toml that reach runners and graders as they are written, by Harbor's names."""

from enum import StrEnum
from pathlib import PurePosixPath
from typing import Annotated, Final

from msgspec import Meta, Struct

from evener.proto.spec import Count, Seconds

MAIN_SERVICE: Final = "main"
LOGS_ARTIFACTS: Final = "/logs/artifacts"
"""The folder that is handed over to a separate verifier, whatever a task declares."""


class Healthcheck(Struct, frozen=True):
    """A command that must succeed before an agent is started, or before tests are."""

    command: str
    interval_sec: Seconds = 5.0
    timeout_sec: Seconds = 30.0
    start_period_sec: Annotated[float, Meta(ge=0)] = 0.0
    """How long failures do not count."""
    start_interval_sec: Seconds = 5.0
    """The pause between two tries in that time."""
    retries: Count = 3
    """The number of failures after which the sandbox is given up."""


class HistoryKept(StrEnum):
    """How much of a repository's history an agent gets."""

    BASE = "base"
    """What the current commit reaches."""
    NONE = "none"
    """The current commit without its parents: they hold the solution."""


class Cleaning(Struct, frozen=True, forbid_unknown_fields=True):
    """What an agent must not find in its sandbox. The sandbox of the tests keeps it."""

    repositories: tuple[str, ...] = ()
    """The folders of repositories whose history is cut. What package managers have fetched is removed with it."""
    history: HistoryKept = HistoryKept.BASE
    removed: tuple[str, ...] = ()
    """The files and folders that are removed before the agent starts."""

    def __post_init__(self) -> None:
        """Refuse places that are no absolute paths."""
        for place in (*self.repositories, *self.removed):
            if not place.startswith("/") or "\0" in place or ".." in PurePosixPath(place).parts or place.strip("/") == "":
                msg = f"{place!r} is not an absolute path without '..'"
                raise ValueError(msg)


class Transport(StrEnum):
    """How an MCP server is talked to."""

    STDIO = "stdio"
    SSE = "sse"
    HTTP = "streamable-http"


class McpServer(Struct, frozen=True):
    """A server of tools for the agent. A harness starts those of `stdio` in the sandbox, in the working directory."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    transport: Transport = Transport.SSE
    url: str | None = None
    command: str | None = None
    args: tuple[str, ...] = ()
    headers: dict[str, str] = {}

    def __post_init__(self) -> None:
        """Refuse a server without the key that its transport needs."""
        if (self.transport is Transport.STDIO) != (self.url is None) or (self.url is None) == (self.command is None):
            msg = f"MCP server {self.name!r}: `stdio` needs `command` and has no `url`, the others need `url` and have no `command`"
            raise ValueError(msg)


class DeclaredArtifact(Struct, frozen=True):
    """What an agent leaves for a separate verifier, which finds it in the same place."""

    source: str
    """A path in the agent's sandbox. A relative one is below the working directory."""
    destination: str | None = None
    """Where Harbor keeps it in its own folder. Here it has no meaning."""
    exclude: tuple[str, ...] = ()
    """Patterns of names below a folder that are left out."""
    service: str | None = None

    def __post_init__(self) -> None:
        """Refuse a path that leaves its folder."""
        if ".." in PurePosixPath(self.source).parts or not self.source.strip("/"):
            msg = f"artifact {self.source!r} is not a path without '..'"
            raise ValueError(msg)


class CollectHook(Struct, frozen=True):
    """A command that runs after the agent, before its artifacts are handed over."""

    command: str
    service: str = MAIN_SERVICE
    timeout_sec: Seconds = 60.0
    user: str | int | None = None


class VerifierMode(StrEnum):
    """Where tests run."""

    SHARED = "shared"
    """With everything that the agent left."""
    SEPARATE = "separate"
    """In a sandbox that has its artifacts and nothing else of it."""


class RewardStrategy(StrEnum):
    """What the rewards of several steps come to."""

    MEAN = "mean"
    FINAL = "final"


class Handover(Struct, frozen=True, kw_only=True):
    """How a separate verifier gets what an agent left."""

    artifacts: tuple[DeclaredArtifact, ...]
    collect: tuple[CollectHook, ...] = ()
    has_tests: bool = False
    """Whether the verifier's image brings the tests, so that nothing is copied into it."""


def handed_over(declared: tuple[str | DeclaredArtifact, ...]) -> tuple[DeclaredArtifact, ...]:
    """Return declared artifacts, and the folder that is always one of them."""
    found = tuple(DeclaredArtifact(source=one) if isinstance(one, str) else one for one in declared)
    if any(one.source.rstrip("/") == LOGS_ARTIFACTS for one in found):
        return found
    return (DeclaredArtifact(source=LOGS_ARTIFACTS), *found)
