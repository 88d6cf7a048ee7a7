"""Reads task.toml (Harbor's schema 1.4): the keys that change what a task means. Other keys are accepted and ignored."""

import tomllib
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from evener.proto.prepared import Converter
from evener.proto.sandbox import ImageBuild, Network, NetworkMode, SandboxLimits, SandboxSpec
from evener.proto.spec import Seconds
from evener.tasks.errors import TaskError
from evener.tasks.grader_table import OwnTable
from evener.tasks.tables import MAIN_SERVICE, CollectHook, DeclaredArtifact, Healthcheck, McpServer, RewardStrategy, VerifierMode

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
    mcp_servers: tuple[McpServer, ...] = ()
    healthcheck: Healthcheck | None = None


class Verifier(Struct, frozen=True):
    """The table `[verifier]`."""

    timeout_sec: Seconds | None = None
    env: dict[str, str] = {}
    user: str | int | None = None
    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] | None = None
    environment_mode: VerifierMode | None = None
    environment: Environment | None = None
    collect: tuple[CollectHook, ...] = ()

    @property
    def mode(self) -> VerifierMode | None:
        """Return the mode, which an environment of its own implies. None: it says nothing."""
        return self.environment_mode or (None if self.environment is None else VerifierMode.SEPARATE)


class StepTable(Struct, frozen=True):
    """One of `[[steps]]`."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$")]
    agent: Agent = Agent()
    verifier: Verifier = Verifier()
    min_reward: float | dict[str, float] | None = None
    healthcheck: Healthcheck | None = None
    artifacts: tuple[str | DeclaredArtifact, ...] = ()


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
    artifacts: tuple[str | DeclaredArtifact, ...] = ()
    steps: tuple[StepTable, ...] = ()
    multi_step_reward_strategy: RewardStrategy = RewardStrategy.MEAN


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


def sandbox(place: Environment, phase: Agent | Verifier, image: str | ImageBuild | None) -> SandboxSpec:
    """Return the sandbox of the agent or of the verifier. Raises TaskError for a network policy that contradicts itself."""
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
    verifiers = [manifest.verifier, *(step.verifier for step in manifest.steps)]
    places = [manifest.environment, *(verifier.environment for verifier in verifiers if verifier.environment is not None)]
    artifacts = [*manifest.artifacts, *(one for step in manifest.steps for one in step.artifacts)]
    services = [hook.service for verifier in verifiers for hook in verifier.collect]
    services += [one.service for one in artifacts if isinstance(one, DeclaredArtifact) and one.service is not None]
    users = {step.agent.user for step in manifest.steps} - {None, manifest.agent.user}
    wanted = {
        "an operating system other than linux": any(place.os != "linux" for place in places),
        f"{max(place.gpus for place in places)} GPUs": any(place.gpus > 0 for place in places),
        "a TPU": any(place.tpu is not None for place in places),
        "a skills folder": any(place.skills_dir is not None for place in places),
        "several services": any(service != MAIN_SERVICE for service in services),
        "several users for its steps": bool(users),
        "another network for a step": any(step.agent.network_mode is not None for step in manifest.steps),
        "variables of the host": any("${" in value for value in _values(manifest, places, verifiers)),
    }
    return tuple(need for need, is_wanted in wanted.items() if is_wanted)


def _values(manifest: Manifest, places: list[Environment], verifiers: list[Verifier]) -> Iterator[str]:
    """Yield every value that Harbor would fill in from the variables of the host."""
    yield from manifest.solution.env.values()
    for verifier in verifiers:
        yield from verifier.env.values()
    for place in places:
        yield from place.env.values()
        for server in place.mcp_servers:
            yield from (*server.headers.values(), *server.args, server.url or "", server.command or "")
