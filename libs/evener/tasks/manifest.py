"""Reads task.toml (Harbor's schema 1.4): the keys that change what a task means. Other keys are accepted and ignored."""

import tomllib
from pathlib import PurePosixPath
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from evener.proto.prepared import Converter
from evener.proto.sandbox import ImageBuild, Network, NetworkMode, SandboxLimits, SandboxSpec
from evener.proto.spec import Seconds
from evener.tasks.errors import TaskError
from evener.tasks.grader_table import OwnTable

MAX_MANIFEST_BYTES: Final = 256 * 1024
MAX_DOTS: Final = 1000
"""The limit of dots in a line. The time that the parser takes for a dotted key grows with the square of its parts."""


class Identity(Struct, frozen=True):
    """The table `[task]`."""

    name: str | None = None


class Agent(Struct, frozen=True):
    """The table `[agent]`."""

    timeout_sec: Seconds | None = None
    user: str | int | None = None
    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] | None = None


class Environment(Struct, frozen=True):
    """The tables `[environment]` and `[verifier.environment]`."""

    docker_image: str | None = None
    os: str = "linux"
    gpus: int = 0
    tpu: dict[str, object] | None = None
    env: dict[str, str] = {}
    workdir: str | None = None
    skills_dir: str | None = None
    cpus: Annotated[float, Meta(gt=0)] | None = None
    memory_mb: Annotated[int, Meta(gt=0)] | None = None
    storage_mb: Annotated[int, Meta(gt=0)] | None = None
    network_mode: NetworkMode | None = None
    """Harbor's default is `public`. Here a task that declares nothing asks for nothing."""
    allowed_hosts: list[str] = []
    allow_internet: bool | None = None
    mcp_servers: list[dict[str, object]] = []
    healthcheck: dict[str, object] | None = None


class Verifier(Struct, frozen=True):
    """The table `[verifier]`."""

    timeout_sec: Seconds = 600.0
    env: dict[str, str] = {}
    user: str | int | None = None
    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] | None = None
    environment: Environment | None = None
    collect: list[dict[str, object]] = []


class Solution(Struct, frozen=True):
    """The table `[solution]`: of the oracle."""

    env: dict[str, str] = {}


class Metadata(Struct, frozen=True):
    """`[metadata]`: free-form, except for Evener's own table."""

    evener: OwnTable | None = None


class Manifest(Struct, frozen=True):
    """The whole of `task.toml`."""

    schema_version: str = "1.4"
    task: Identity = Identity()
    agent: Agent = Agent()
    verifier: Verifier = Verifier()
    environment: Environment = Environment()
    metadata: Metadata = Metadata()
    solution: Solution = Solution()
    steps: list[dict[str, object]] = []


_manifests: Final = Converter(Manifest)


def parse(text: str) -> Manifest:
    """Return the manifest in `text`. Raises TaskError with the line of a syntax error, or the key of a wrong value."""
    _check_size(text)
    try:
        return _manifests.convert(tomllib.loads(text))
    except RecursionError as cause:
        msg = "task.toml: its values are nested too deeply"
        raise TaskError(msg) from cause
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as cause:
        msg = f"task.toml: {cause}"
        raise TaskError(msg) from cause


def _check_size(text: str) -> None:
    """Refuse text that would keep the parser busy for minutes."""
    if len(text) > MAX_MANIFEST_BYTES:
        msg = f"task.toml is larger than {MAX_MANIFEST_BYTES // 1024} KiB"
        raise TaskError(msg)
    for number, line in enumerate(text.splitlines(), 1):
        if line.count(".") > MAX_DOTS:
            msg = f"task.toml: line {number} has more than {MAX_DOTS} dots"
            raise TaskError(msg)


def sandbox(manifest: Manifest, phase: Agent | Verifier, image: str | ImageBuild | None) -> SandboxSpec:
    """Return the sandbox of the agent or of the verifier. Raises TaskError for a network policy that contradicts itself."""
    place = manifest.environment
    return SandboxSpec(
        image=image,
        workdir=_workdir(place.workdir),
        user=None if phase.user is None else str(phase.user),
        limits=SandboxLimits(cpus=place.cpus, memory_bytes=_bytes(place.memory_mb), disk_bytes=_bytes(place.storage_mb)),
        network=_network(place, phase),
    )


def _bytes(megabytes: int | None) -> int | None:
    return None if megabytes is None else megabytes << 20


def _workdir(wanted: str | None) -> str | None:
    """Return the working directory. Raises TaskError for a path that would lie outside the sandbox."""
    if wanted is not None and (not wanted.startswith("/") or "\0" in wanted or ".." in PurePosixPath(wanted).parts):
        msg = f"task.toml: workdir is {wanted!r}, not an absolute path without '..'"
        raise TaskError(msg)
    return wanted


def _network(place: Environment, phase: Agent | Verifier) -> Network | None:
    """Return the policy of a phase, whose own keys override the environment's."""
    mode, hosts = place.network_mode, place.allowed_hosts
    if mode is None and place.allow_internet is not None:
        mode = NetworkMode.PUBLIC if place.allow_internet else NetworkMode.NONE
    if phase.network_mode is not None:
        mode, hosts = phase.network_mode, []
    if phase.allowed_hosts is not None:
        hosts = phase.allowed_hosts
    if bool(hosts) != (mode is NetworkMode.ALLOWLIST):
        msg = f"task.toml: allowed_hosts is for the network_mode allowlist, and needs a host there (mode: {mode}, hosts: {len(hosts)})"
        raise TaskError(msg)
    return None if mode is None else Network(mode=mode, hosts=tuple(hosts))


def needs(manifest: Manifest) -> tuple[str, ...]:
    """Return what the task needs that no sandbox gives yet, in words."""
    place, grading = manifest.environment, manifest.verifier
    variables = (*place.env.values(), *grading.env.values(), *manifest.solution.env.values())
    wanted = {
        f"the operating system {place.os}": place.os != "linux",
        f"{place.gpus} GPUs": place.gpus > 0,
        "a TPU": place.tpu is not None,
        "MCP servers": bool(place.mcp_servers),
        "a health check": place.healthcheck is not None,
        "a skills folder": place.skills_dir is not None,
        "an image of its own for grading": grading.environment is not None,
        "collect hooks": bool(grading.collect),
        "variables of the host": any("${" in value for value in variables),
    }
    return tuple(need for need, is_wanted in wanted.items() if is_wanted)
