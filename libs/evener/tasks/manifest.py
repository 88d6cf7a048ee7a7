"""Reads task.toml (Harbor's schema 1.4): the keys that change what a task means. Other keys are accepted and ignored."""

import tomllib
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from evener.proto.patterns import BadPattern, text_pattern
from evener.proto.prepared import Converter
from evener.proto.spec import GraderSpec
from evener.tasks.errors import TaskError

Seconds = Annotated[float, Meta(gt=0)]

MOST_BYTES: Final = 256 * 1024
MOST_DOTS: Final = 1000
"""The limit of dots in a line. The time that the parser takes for a dotted key grows with the square of its parts."""

MATCHES: Final = ("exact", "contains", "regex", "number")
"""How the `answer` grader compares the last message with the expected answer."""


class Identity(Struct, frozen=True):
    """`[task]`."""

    name: str | None = None


class Agent(Struct, frozen=True):
    """`[agent]`."""

    timeout_sec: Seconds | None = None
    user: str | int | None = None
    network_mode: str | None = None


class Environment(Struct, frozen=True):
    """`[environment]` and `[verifier.environment]`."""

    docker_image: str | None = None
    os: str = "linux"
    gpus: int = 0
    tpu: dict[str, object] | None = None
    env: dict[str, str] = {}
    workdir: str | None = None
    skills_dir: str | None = None
    network_mode: str = "public"
    allow_internet: bool = True
    mcp_servers: list[dict[str, object]] = []
    healthcheck: dict[str, object] | None = None


class Verifier(Struct, frozen=True):
    """`[verifier]`."""

    timeout_sec: Seconds = 600.0
    env: dict[str, str] = {}
    user: str | int | None = None
    network_mode: str | None = None
    environment: Environment | None = None
    collect: list[dict[str, object]] = []


class OwnGrader(Struct, frozen=True, forbid_unknown_fields=True):
    """`[metadata.evener]`: a grader without a script."""

    grader: str = "answer"
    expected: str | int | float | None = None
    match: str = "exact"


class Metadata(Struct, frozen=True):
    """`[metadata]`: free-form, except for Evener's own table."""

    evener: OwnGrader | None = None


class Manifest(Struct, frozen=True):
    """The whole file."""

    schema_version: str = "1.4"
    task: Identity = Identity()
    agent: Agent = Agent()
    verifier: Verifier = Verifier()
    environment: Environment = Environment()
    metadata: Metadata = Metadata()
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
    if len(text) > MOST_BYTES:
        msg = f"task.toml is larger than {MOST_BYTES // 1024} KiB"
        raise TaskError(msg)
    for number, line in enumerate(text.splitlines(), 1):
        if line.count(".") > MOST_DOTS:
            msg = f"task.toml: line {number} has more than {MOST_DOTS} dots"
            raise TaskError(msg)


def own_grader(table: OwnGrader) -> GraderSpec:
    """Return the grader of `[metadata.evener]`. Raises TaskError if the table is not a valid grader."""
    if table.grader == "none":
        return GraderSpec(name="none")
    if table.grader != "answer":
        msg = f"task.toml: [metadata.evener] grader is {table.grader!r}, not 'answer' or 'none'"
        raise TaskError(msg)
    if table.expected is None:
        msg = "task.toml: [metadata.evener] has no `expected`"
        raise TaskError(msg)
    _check_match(table.match, str(table.expected))
    return GraderSpec(name="answer", options={"expected": str(table.expected), "match": table.match})


def needs(manifest: Manifest) -> tuple[str, ...]:
    """Return what the task needs beyond a working directory and its files, in words."""
    place, grading = manifest.environment, manifest.verifier
    wanted = {
        f"the image {place.docker_image}": place.docker_image is not None,
        f"the operating system {place.os}": place.os != "linux",
        f"{place.gpus} GPUs": place.gpus > 0,
        "a TPU": place.tpu is not None,
        "limited network access": _limits_network(manifest),
        "MCP servers": bool(place.mcp_servers),
        "a health check": place.healthcheck is not None,
        "a skills folder": place.skills_dir is not None,
        "a user of its own": manifest.agent.user is not None or grading.user is not None,
        "an image of its own for grading": grading.environment is not None,
        "collect hooks": bool(grading.collect),
        "variables of the host": any("${" in value for value in (*place.env.values(), *grading.env.values())),
    }
    return tuple(need for need, is_wanted in wanted.items() if is_wanted)


def _limits_network(manifest: Manifest) -> bool:
    modes = (manifest.environment.network_mode, manifest.agent.network_mode, manifest.verifier.network_mode)
    return not manifest.environment.allow_internet or any(mode not in {None, "public"} for mode in modes)


def _check_match(match: str, expected: str) -> None:
    if match not in MATCHES:
        msg = f"task.toml: [metadata.evener] match is {match!r}, not one of {', '.join(MATCHES)}"
        raise TaskError(msg)
    try:
        if match == "regex":
            text_pattern(expected)
        elif match == "number":
            float(expected)
    except BadPattern as cause:
        msg = f"task.toml: [metadata.evener] expected is {cause.args[0]}"
        raise TaskError(msg) from cause
    except ValueError as cause:
        msg = f"task.toml: [metadata.evener] expected is not a {match}: {cause}"
        raise TaskError(msg) from cause
