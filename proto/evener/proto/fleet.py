"""Events of the compacted topics `fleet`, `leases` and `policies`, and of `dead-letters`."""

from typing import Annotated

from msgspec import Meta, Struct

from evener.proto.blobs import BlobRef, Bulk
from evener.proto.sandbox import SandboxKind, SandboxOffer
from evener.proto.sessions import Event
from evener.proto.spec import TaskRef


class Running(Struct, frozen=True, kw_only=True):
    """An attempt that a runner holds."""

    session_id: str
    attempt: int


class TopicLag(Struct, frozen=True, kw_only=True):
    """How far an instance is behind the ends of its partitions of a topic."""

    topic: str
    records: int
    """The number of records that it has not worked on, of all its partitions."""
    partitions: int
    """The number of partitions that it reads."""
    worst_partition: int
    """The partition in which it is furthest behind."""
    worst_records: int
    """The number of records that it has not worked on there."""


class PolicyFingerprint(Struct, frozen=True, kw_only=True):
    """How a gateway renders for a policy. Gateways that differ in it would give the engine other ids for the same conversation."""

    policy: str
    tokenizer: str
    """A digest of the tokenizer."""
    template: str
    """A digest of the chat template."""
    settings: str
    """A digest of what else decides: options, special tokens, the rules by which turns are extended and tool calls are read."""


class GraderOffer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What graders find in an evaluator, by name."""

    endpoints: tuple[str, ...] = ()
    """The judges and verifiers that its configuration names."""
    modules: tuple[str, ...] = ()
    """The Python modules that it allows."""
    functions: tuple[str, ...] = ()
    """Their functions, as `MODULE:NAME`."""
    parsers: tuple[str, ...] = ()
    """The parsers of test runners' output."""


class QueuedSessions(Struct, frozen=True, kw_only=True):
    """Sessions that wait for a runner and need sandboxes of one kind."""

    kind: SandboxKind
    task: TaskRef
    """One of their tasks, which tells how to prepare a sandbox of this kind."""
    sessions: int
    """The number of these sessions."""


class WarmSandboxes(Struct, frozen=True, kw_only=True):
    """The sandboxes of a kind that a runner has prepared and no session has yet."""

    kind: SandboxKind
    ready: int
    """The number of these sandboxes."""


class Heartbeat(Event, frozen=True, kw_only=True, tag="heartbeat.v1"):
    """A sign that an instance is alive. The last heartbeat of an instance id counts."""

    instance_id: str
    service: str
    """The folder name of the service, for example `sandbox_runner`."""
    address: str | None = None
    """The base URL of the service's HTTP endpoints."""
    boot_id: str
    """A random id, drawn at each start of the process."""
    capacity: int = 0
    """The number of sessions that a runner can hold."""
    warm: tuple[WarmSandboxes, ...] = ()
    """The sandboxes that a runner has prepared ahead."""
    sandboxes: SandboxOffer | None = None
    """The sandboxes that a runner can open. None: an older process wrote this, or another service."""
    queued: tuple[QueuedSessions, ...] = ()
    """The sessions at the head of an active scheduler's queue, the next ones first: what runners prepare sandboxes for. Not all are named,
    and none for which no sandbox needs to be prepared ahead."""
    partitions: tuple[int, ...] = ()
    """The partitions of `sessions` that a gateway serves, and that its group assigns to it."""
    releasing: tuple[int, ...] = ()
    """The partitions of `sessions` that a gateway hands over: it finishes their calls and takes no new ones. None is in `partitions`."""
    epochs: tuple[tuple[int, int], ...] = ()
    """Each of both with the epoch of the gateway's hold on it. Of all gateways that list a partition, the one with the highest epoch owns
    it."""
    policies: tuple[str, ...] = ()
    """The policies that a gateway can render for."""
    fingerprints: tuple[PolicyFingerprint, ...] = ()
    """How a gateway renders for each of them, which is the same for all gateways of a deployment. Empty: an older process wrote this."""
    scheduler: str = ""
    """The name of a scheduler. All of one name share the work: one is active, the others stand by."""
    reaches: tuple[str, ...] = ()
    """The policies and frozen engines (`frozen:ID`) for which an engine answers this gateway."""
    active_epoch: int = 0
    """The epoch of an active scheduler. If several say that they are active, the one with the highest epoch is. 0: the scheduler stands
    by."""
    key: str = ""
    """A fingerprint of the capability key, which is the same for all processes of a deployment. Empty: an older process wrote this."""
    session_partitions: int = 0
    """The number of partitions of `sessions` that the process counts. 0: an older process wrote this."""
    graders: GraderOffer | None = None
    """What an evaluator offers to graders. None: an older process wrote this, or another service."""
    probe: BlobRef | None = None
    """A blob that the process has put into its blob store. A process that does not find this blob uses another store. None: the store
    cannot be used now."""
    lag: tuple[TopicLag, ...] = ()
    """How far the instance is behind in each topic that it reads, measured in the last seconds."""
    stopping: bool = False
    at: float


class RunnerLeases(Event, frozen=True, kw_only=True, tag="runner_leases.v1"):
    """The attempts that a runner holds, whose leases it renews. A runner writes it with each heartbeat; the scheduler alone reads it."""

    runner_id: str
    running: tuple[Running, ...]
    """They include dispatched ones that the runner has accepted."""
    at: float


class EngineJoined(Event, frozen=True, kw_only=True, tag="engine_joined.v1"):
    """An engine is ready for use."""

    engine_id: str
    kind: str
    """The adapter to use: `embedded`, `vllm`, `vllm_chat` or `scripted`."""
    url: str
    policy: str | None = None
    """The policy that the engine samples. None: the engine is frozen, and a model map addresses it by its id."""
    max_concurrency: int = 64
    vision: bool = False
    """Whether the engine takes images. Only engines that render the messages themselves do."""
    joined_at: float


class EngineDraining(Event, frozen=True, kw_only=True, tag="engine_draining.v1"):
    """The engine gets no new calls. Its open calls run to their end."""

    engine_id: str
    draining_at: float


class EngineLeft(Event, frozen=True, kw_only=True, tag="engine_left.v1"):
    """The engine is gone."""

    engine_id: str
    left_at: float


class PartitionsAgreed(Event, frozen=True, kw_only=True, tag="partitions_agreed.v1"):
    """The number of partitions that a deployment agreed on. Its first process writes it, once."""

    partitions: int
    """The number of partitions of `sessions` and of each topic after it. Every key is placed by it."""
    agreed_at: float


class CanaryPrompt(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Ids that engines score before and after an update of their weights."""

    ids: Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(min_length=2, max_length=4096)]
    """T token ids, from the beginning of a context."""
    logprobs: tuple[float | None, ...] | None = None
    """The trainer's T logprobs (natural logarithm, temperature 1) of each id given the ids before it; the first is None. None instead of
    the whole array: the trainer gave no logprobs."""

    def __post_init__(self) -> None:
        """Refuse arrays of different lengths, and a missing logprob after the first."""
        if self.logprobs is not None and (len(self.logprobs) != len(self.ids) or None in self.logprobs[1:]):
            msg = f"CanaryPrompt: {len(self.ids)} ids need as many logprobs, only the first of them null"
            raise ValueError(msg)


class Canary(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The prompts that prove an update of the weights."""

    prompts: Annotated[tuple[CanaryPrompt, ...], Meta(min_length=1, max_length=64)]
    tolerance: Annotated[float, Meta(gt=0)] = 1e-3
    """The largest difference allowed between an engine's logprob and the trainer's."""


class PolicyStaged(Event, frozen=True, kw_only=True, tag="policy_staged.v1"):
    """Engines are about to load this version.

    The event is committed before the first engine loads, so that a number never names two sets of weights.
    """

    policy: str
    version: int
    location: str
    """The folder from which engines load the weights."""
    digest: str
    """The digest of the weights, independent of their folder."""
    canary: Canary | None = None
    staged_at: float


class PolicyPublished(Event, frozen=True, kw_only=True, tag="policy_published.v1"):
    """The trainer published a version, and the engines have proven that they sample from it."""

    policy: str
    version: int
    location: str
    """The folder from which engines load the weights."""
    digest: str | None = None
    canary: Canary | None = None
    """The canary that proves engines which join later. It has the trainer's logprobs if the trainer gave them, otherwise an engine's."""
    gap: float | None = None
    """The largest difference between the logprobs of an engine and of the trainer. None: they were not compared."""
    published_at: float


class PolicyRetired(Event, frozen=True, kw_only=True, tag="policy_retired.v1"):
    """The version must not be used any more. Tokens that were sampled under it are not trained."""

    policy: str
    version: int
    reason: str = ""
    retired_at: float


class DeadLetter(Event, frozen=True, kw_only=True, tag="dead_letter.v1"):
    """A record that could not be read, and how to replay it."""

    service: str
    """The service that could not read the record."""
    topic: str
    partition: int
    offset: int
    key: str
    reason: str
    value: Bulk
    """The value of the record, unchanged."""
    headers: tuple[tuple[str, bytes], ...] = ()
    replay: str
    """The command that appends the record again."""
    at: float


class LetterReplayed(Event, frozen=True, kw_only=True, tag="letter_replayed.v1"):
    """A record that services could not read was appended to its partition again, in the same transaction as this mark."""

    topic: str
    partition: int
    offset: int
    by: str
    """The principal that asked for it."""
    at: float


PolicyEvent = PolicyStaged | PolicyPublished | PolicyRetired
LetterEvent = DeadLetter | LetterReplayed
FleetEvent = Heartbeat | EngineJoined | EngineDraining | EngineLeft | PartitionsAgreed
