"""What a task asks of its sandbox: an image, a user, limits, a network. Every sandbox backend reads this, and says what it cannot give."""

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct


class NetworkMode(StrEnum):
    """What a sandbox may reach besides its relay."""

    PUBLIC = "public"
    """Any public address."""
    NONE = "no-network"
    """Nothing."""
    ALLOWLIST = "allowlist"
    """The hosts that are named."""


class Network(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A network policy."""

    mode: NetworkMode
    hosts: tuple[str, ...] = ()
    """The hosts of an allowlist: host names, `*.suffix`, IP addresses or ranges (CIDR)."""


class ImageBuild(Struct, frozen=True, kw_only=True):
    """An image that is built. The same files give the same image, which is built once."""

    context: str
    """The folder on this machine with the Dockerfile and the files that it copies."""
    dockerfile: str = "Dockerfile"


class SandboxLimits(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How much a sandbox may use. None: the backend's default."""

    cpus: float | None = None
    memory_bytes: int | None = None
    disk_bytes: int | None = None
    """The number of bytes that programs may write."""
    pids: int | None = None
    """The number of processes and threads."""


class Mount(Struct, frozen=True, kw_only=True):
    """A folder of this machine that programs in the sandbox can read."""

    source: str
    place: str
    """The path of the folder in the sandbox: below `/opt/evener`, which never counts as a program's change."""


class SandboxSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The requirements of a sandbox."""

    image: str | ImageBuild | None = None
    """The reference of an image, or how to build it. None: the backend's own."""
    workdir: str | None = None
    """The working directory. None: the image's, otherwise `/app`."""
    user: str | None = None
    """The name or id of the user that programs run as. None: the image's, and for the backend's own image one without rights."""
    limits: SandboxLimits = SandboxLimits()
    network: Network | None = None
    """What may be reached. None: as little as the backend can give."""
    mounts: Sequence[Mount] = ()
    drops_rights: bool = False
    """Whether programs that run as root may become another user (CAP_SETUID, CAP_SETGID), to run what they do not trust."""
    read_only_root: bool | None = None
    """Whether programs can write only in the working directory, the home, /tmp, /logs, /tests and /solution. None: as the backend's
    configuration says."""


class SandboxOffer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The sandboxes of a runner."""

    backends: tuple[str, ...]
    """The backends that it has opened."""
    default: str = ""
    """The backend of sessions whose run and task name none, as its configuration says. Empty: it says nothing."""
    trusts_local: bool = False
    """Whether it lets harnesses that have tools run as plain processes."""


class SandboxKind(Struct, frozen=True, kw_only=True):
    """What a sandbox has before a session comes: sandboxes of one kind can stand in for each other."""

    backend: str
    """The sandbox backend: `docker`, `bubblewrap`, ..."""
    harness: str
    """The harness whose bundle is mounted."""
    needs: str
    """The digest of a task's SandboxSpec. A Dockerfile counts by its files."""
