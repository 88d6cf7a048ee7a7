"""The settings of a sandbox's container for the daemon."""

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

from evener.proto.sandbox import NetworkMode, SandboxSpec
from evener.sandboxes.config import DockerConfig
from evener.sandboxes.docker_seccomp import profile
from evener.sandboxes.home import home_variables
from evener.sandboxes.port import HOME, OOM_SCORE, TEMPORARY, WORKDIR

LABEL: Final = "evener.sandboxes"
"""The label of a container. Its value names the process that has it: the folder that the process holds."""
DROPPING_RIGHTS: Final = ("SETUID", "SETGID")
"""What root needs to run a program as somebody else."""
IDLE: Final = ("sh", "-c", "while :; do sleep 3600 & wait $!; done")
"""The first process of a container. It also reaps what other programs leave."""


def workdir_of(image: Mapping[str, Any], spec: SandboxSpec) -> str:
    """Return the working directory: the spec's, the image's, or the usual one."""
    return spec.workdir or image["Config"].get("WorkingDir") or WORKDIR


def user_of(image: Mapping[str, Any], spec: SandboxSpec, config: DockerConfig) -> str:
    """Return the user of programs: the spec's, in our own image one without rights, otherwise the image's."""
    return spec.user or (config.user if spec.image is None else image["Config"].get("User") or "0:0")


def has_read_only_root(image: Mapping[str, Any], spec: SandboxSpec, config: DockerConfig) -> bool:
    """Return whether the root is made read-only: as the spec says, otherwise as it is configured for sandboxes of our own image."""
    is_ours = spec.image is None and spec.user is None and config.runtime is None
    wanted = config.read_only_root and is_ours if spec.read_only_root is None else spec.read_only_root
    return wanted and workdir_of(image, spec) != "/"


def container_of(image: Mapping[str, Any], spec: SandboxSpec, config: DockerConfig, owner: str) -> dict[str, Any]:
    """Return the daemon's request to create the container."""
    limits = spec.limits
    cpus = limits.cpus or config.cpus
    memory = limits.memory_bytes or config.memory_bytes
    disk = limits.disk_bytes or config.disk_bytes
    is_public = spec.network is not None and spec.network.mode is NetworkMode.PUBLIC
    return {
        "Image": image["Id"],
        "Entrypoint": list(IDLE),
        "Cmd": [],
        "User": user_of(image, spec, config),
        "WorkingDir": "/",  # the daemon would make another one, for root
        "Env": [f"{name}={value}" for name, value in home_variables(HOME, TEMPORARY).items()],
        "Labels": {LABEL: owner},
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            "NetworkMode": config.public_network if is_public and config.public_network else "none",
            "CapDrop": ["ALL"],
            "CapAdd": [*config.capabilities, *(DROPPING_RIGHTS if spec.drops_rights else ())],
            "SecurityOpt": ["no-new-privileges", f"seccomp={config.seccomp or profile()}"],
            "IpcMode": "private",
            "OomScoreAdj": OOM_SCORE,
            "PidsLimit": limits.pids or config.pids,
            "Memory": memory,
            "MemorySwap": memory,
            "NanoCpus": int((cpus or 0) * 1e9),
            "StorageOpt": {} if disk is None else {"size": str(disk)},
            "Ulimits": [] if disk is None else [{"Name": "fsize", "Soft": disk, "Hard": disk}],
            "Mounts": [{"Type": "bind", "Source": mount.source, "Target": mount.place, "ReadOnly": True} for mount in spec.mounts],
            "LogConfig": {"Type": "none"},
            **({} if config.runtime is None else {"Runtime": config.runtime}),
        },
    }


def container_name(owner: str, name: str) -> str:
    """Return the name of a sandbox's container. `owner` is the folder that the process holds."""
    return f"evener-{hashlib.sha256(owner.encode()).hexdigest()[:8]}-{re.sub(r'[^a-zA-Z0-9_.-]', '-', name)}"
