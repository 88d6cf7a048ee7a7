"""What an attempt to get out of a sandbox is."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from evener.proto.sandbox import Network, SandboxLimits

ESCAPED: Final = "ESCAPED"
"""What a program prints that got what it wanted."""
ALL_RIGHTS: Final[Mapping[str, Any]] = {"CapDrop": [], "CapAdd": ["ALL"], "SecurityOpt": ["seccomp=unconfined"]}
"""A container whose root has its capabilities, and all system calls."""


class Attempt(Struct, frozen=True, kw_only=True):
    """A program that tries to do something which a sandbox must prevent."""

    name: str
    code: str
    """Python. The functions and names of `proofs.escape.world` are there. It prints ESCAPED if it got what it wanted."""
    network: Network | None = None
    limits: SandboxLimits = SandboxLimits()
    log_bytes: int = 1 << 16
    loosened: Mapping[str, Any] = {}
    """What the container's HostConfig says instead where the defence is switched off."""
    kinds: tuple[str, ...] = ("docker", "bubblewrap")
    """The backends that prevent it. What Docker's own profile of system calls allows is the daemon's matter."""
    as_root: bool = False
    """Whether the program without the defence runs as root: the defence is the user, too."""
    private_hosts: tuple[str, ...] = ()
    """What the proxy lets through where the defence is switched off."""
    impossible: str = ""
    """Why it cannot be tried on this machine. Empty: it can."""
    plain: str | None = None
    """Why there is no try as a plain process, which is `bubblewrap` with everything switched off. None: there is one."""
