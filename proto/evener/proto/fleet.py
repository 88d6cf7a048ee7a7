"""Events of the compacted topics `fleet` and `policies`, and of `dead-letters`."""

from msgspec import Struct

from evener.proto.blobs import Bulk
from evener.proto.sessions import Event


class Running(Struct, frozen=True, kw_only=True):
    """An attempt that a runner holds."""

    session_id: str
    attempt: int


class Heartbeat(Event, frozen=True, kw_only=True, tag="heartbeat.v1"):
    """An instance is alive. The last one of an instance id counts."""

    instance_id: str
    service: str
    """The service's folder name, `sandbox_runner` for example."""
    address: str | None = None
    """Base URL of its HTTP endpoints."""
    boot_id: str
    """Drawn at each start of the process."""
    capacity: int = 0
    """Sessions it can hold (runners)."""
    running: tuple[Running, ...] = ()
    """Attempts it holds, dispatched ones that it has accepted included."""
    harnesses: tuple[str, ...] = ()
    """Harnesses it can run."""
    warm_images: tuple[str, ...] = ()
    """Images with a sandbox ready. None yet: there is no backend with images."""
    partitions: tuple[int, ...] = ()
    """Partitions of `sessions` that it owns and serves (gateways)."""
    policies: tuple[str, ...] = ()
    """Policies that it can render for (gateways)."""
    stopping: bool = False
    at: float


class EngineJoined(Event, frozen=True, kw_only=True, tag="engine_joined.v1"):
    """An engine may be used."""

    engine_id: str
    kind: str
    """`embedded`, `vllm`, `scripted`."""
    url: str
    policy: str | None = None
    """The policy that it samples. None: a frozen engine, addressed by its id."""
    max_concurrency: int = 64
    joined_at: float


class EngineDraining(Event, frozen=True, kw_only=True, tag="engine_draining.v1"):
    """No new calls; open ones end."""

    engine_id: str
    draining_at: float


class EngineLeft(Event, frozen=True, kw_only=True, tag="engine_left.v1"):
    """The engine is gone."""

    engine_id: str
    left_at: float


class PolicyPublished(Event, frozen=True, kw_only=True, tag="policy_published.v1"):
    """The trainer published a version."""

    policy: str
    version: int
    location: str
    """Where engines load it from."""
    digest: str | None = None
    published_at: float


class PolicyRetired(Event, frozen=True, kw_only=True, tag="policy_retired.v1"):
    """A version is not to be used any more."""

    policy: str
    version: int
    retired_at: float


class DeadLetter(Event, frozen=True, kw_only=True, tag="dead_letter.v1"):
    """A record that could not be read, with how to replay it."""

    service: str
    """Who gave it up."""
    topic: str
    partition: int
    offset: int
    key: str
    reason: str
    value: Bulk
    """Of the record, as it stood there."""
    headers: tuple[tuple[str, bytes], ...] = ()
    replay: str
    """The command that reads it again."""
    at: float
