"""The configuration of sandbox backends: of the runner and the evaluator, which open them."""

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

BackendName = Literal["docker", "bubblewrap", "local"]
"""The sandbox backends: the names in evener.sandboxes.registry."""


ROOM_BYTES: Final = 16 << 20


class DockerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The backend `docker`."""

    host: str = "unix:///var/run/docker.sock"
    """The daemon: `unix://PATH` or `http://HOST:PORT`."""
    image: str = "python:3.13-bookworm"
    """The image of tasks that name none."""
    user: str = "1000:1000"
    """The user in that image, as ids. In other images programs run as the task's user, otherwise as the image's."""
    runtime: str | None = None
    """The daemon's runtime for containers, such as `runsc` for gVisor. None: the daemon's default."""
    capabilities: tuple[str, ...] = ()
    """The capabilities that programs keep, such as CHOWN. All others are dropped."""
    seccomp: str | None = None
    """The system calls that programs may make: a profile as JSON text, or `unconfined`. None: Evener's own, the same for all daemons."""
    cpus: Annotated[float, Meta(gt=0)] | None = None
    """The CPUs of a sandbox whose task asks for none. None: no limit."""
    memory_bytes: Annotated[int, Meta(ge=6 << 20)] = 4 << 30
    """The memory of a sandbox whose task asks for none. There is no swap."""
    pids: Annotated[int, Meta(ge=16)] = 1024
    """The processes and threads of a sandbox."""
    disk_bytes: Annotated[int, Meta(ge=1 << 20)] | None = None
    """What a sandbox may write whose task says nothing. None: no limit. It needs quotas: overlay2 on XFS with pquota."""
    public_network: str | None = None
    """The Docker network of tasks with a public network, such as `bridge`. None: they get a proxy that refuses private addresses."""
    private_hosts: tuple[str, ...] = ()
    """Ranges of addresses (CIDR) that are not public, and that tasks with a network may reach nonetheless."""
    read_only_root: bool = True
    """Whether the root is read-only where a task names no image, no user, and says nothing of it. An image's owner may need to write."""
    build_network: str = "default"
    """The network in which images are built."""


class BubblewrapConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The backend `bubblewrap`."""

    cpus: Annotated[float, Meta(gt=0)] | None = None
    """The CPUs of a sandbox whose task asks for none, where there are control groups. None: no limit."""
    memory_bytes: Annotated[int, Meta(ge=6 << 20)] = 4 << 30
    """The memory of a sandbox whose task asks for none. Without control groups: of each process, for its own data."""
    pids: Annotated[int, Meta(ge=16)] = 1024
    """The processes and threads of a sandbox."""
    disk_bytes: Annotated[int, Meta(ge=1 << 20)] = 16 << 30
    """What all files of a sandbox may take whose task says nothing. They are counted as the disk fills; too many end the program."""
    private_hosts: tuple[str, ...] = ()
    """Ranges of addresses (CIDR) that are not public, and that tasks with a network may reach nonetheless."""


class SandboxesConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table for each backend that has keys."""

    free_bytes: Annotated[int, Meta(ge=0)] = ROOM_BYTES
    """The free space that the disk of `local` and `bubblewrap` sandboxes must have when a program starts and when it has ended. With less,
    the session is run again, or graded again: on a full disk programs fail by no doing of the agent. Tasks that write much need more."""
    bubblewrap: BubblewrapConfig = BubblewrapConfig()
    """Opened where `bwrap` works."""
    docker: DockerConfig | None = None
    """None: the daemon at the usual socket, if there is one."""
