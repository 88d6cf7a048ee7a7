"""Events of the compacted topics `fleet` and `policies`, and of `dead-letters`."""

from typing import Annotated

from msgspec import Meta, Struct

from evener.proto.blobs import BlobRef, Bulk
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
    key: str = ""
    """Fingerprint of its capability key: all of a deployment have the same. Empty: an older process."""
    probe: BlobRef | None = None
    """A blob that its process has put into its store: who does not find it has another store. None: it cannot be used
    now."""
    stopping: bool = False
    at: float


class EngineJoined(Event, frozen=True, kw_only=True, tag="engine_joined.v1"):
    """An engine may be used."""

    engine_id: str
    kind: str
    """`embedded`, `vllm`, `vllm_chat`, `scripted`."""
    url: str
    policy: str | None = None
    """The policy that it samples. None: a frozen engine, addressed by its id."""
    max_concurrency: int = 64
    vision: bool = False
    """It takes images: only engines that render the messages themselves do."""
    joined_at: float


class EngineDraining(Event, frozen=True, kw_only=True, tag="engine_draining.v1"):
    """No new calls; open ones end."""

    engine_id: str
    draining_at: float


class EngineLeft(Event, frozen=True, kw_only=True, tag="engine_left.v1"):
    """The engine is gone."""

    engine_id: str
    left_at: float


class CanaryPrompt(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Ids that engines score before and after an update of their weights."""

    ids: Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(min_length=2, max_length=4096)]
    """T token ids, from the beginning of a context."""
    logprobs: tuple[float | None, ...] | None = None
    """T natural logarithms by the trainer, at temperature 1, of each id after those before it; None for the first. None: the
    trainer gave none."""

    def __post_init__(self) -> None:
        """Refuse arrays of different lengths, and a gap after the first."""
        if self.logprobs is not None and (len(self.logprobs) != len(self.ids) or None in self.logprobs[1:]):
            msg = f"CanaryPrompt: {len(self.ids)} ids need as many logprobs, only the first of them null"
            raise ValueError(msg)


class Canary(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """By what an update is proven."""

    prompts: Annotated[tuple[CanaryPrompt, ...], Meta(min_length=1, max_length=64)]
    tolerance: Annotated[float, Meta(gt=0)] = 1e-3
    """By how much an engine's logprob may differ from the trainer's."""


class PolicyStaged(Event, frozen=True, kw_only=True, tag="policy_staged.v1"):
    """Engines are about to load this version. Committed before the first of them is told, so that the number never names other weights."""

    policy: str
    version: int
    location: str
    """The folder that engines load it from."""
    digest: str
    """Of the weights, whatever their folder."""
    canary: Canary | None = None
    staged_at: float


class PolicyPublished(Event, frozen=True, kw_only=True, tag="policy_published.v1"):
    """The trainer published a version, and the engines have proven that they sample by it."""

    policy: str
    version: int
    location: str
    """Where engines load it from."""
    digest: str | None = None
    canary: Canary | None = None
    """By what engines that join later are proven: with the trainer's logprobs, where it gave them, else with those of an engine."""
    gap: float | None = None
    """The largest difference between the logprobs of an engine and the trainer's. None: not compared."""
    published_at: float


class PolicyRetired(Event, frozen=True, kw_only=True, tag="policy_retired.v1"):
    """A version is not to be used any more. Tokens that were sampled under it are not trained."""

    policy: str
    version: int
    reason: str = ""
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
