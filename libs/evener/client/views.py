"""The JSON bodies of the HTTP endpoints' requests and answers."""

from typing import Annotated, Final

from msgspec import Meta, Struct

from evener.proto.fleet import Canary, Running, TopicLag, WarmSandboxes
from evener.proto.reasons import TerminationReason
from evener.proto.sandbox import SandboxOffer
from evener.proto.spec import Purpose, TaskRef
from evener.proto.state import Stage
from evener.proto.tasks import TaskOptions, TaskOutcome
from evener.proto.trajectories import Accounting

ACTIVE_HEADER: Final = "evener-active"
"""The header of a 503 by a scheduler that is not the active one: the base URL of that one. Empty: none is known."""


class Submission(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The body of POST /tasks."""

    task_id: str | None = None
    """The client's own id, which makes the submission idempotent. None: one is drawn."""
    task: TaskRef | None = None
    """The task, whose archive must be in the blob store already. None: a recording without a task."""
    options: TaskOptions


class TaskView(Struct, frozen=True, kw_only=True):
    """A task and its progress."""

    cursor: int
    """A number that rises with each change: `after` in GET /events."""
    task_id: str
    run_id: str
    team: str = ""
    principal: str = ""
    """The name of the principal who submitted the task."""
    name: str | None
    """The name of the task. None: a recording without a task."""
    harness: str
    purpose: Purpose
    priority: int = 1
    samples: int
    stages: dict[Stage, int]
    """The number of sessions by stage."""
    ends: dict[TerminationReason, int]
    """The number of sessions that ended or were given up, by reason."""
    attempts: int
    """The number of dispatches of all sessions."""
    rewards: tuple[float | None, ...] = ()
    """The rewards by session, once the group has ended. None where there is none."""
    accounting: Accounting | None = None
    """Where the group's sampled tokens went, once the group has ended. None: not known."""
    cancelled: str | None = None
    outcome: TaskOutcome | None = None
    """How the task ended. None: it has not ended."""
    reason: str = ""
    held: str = ""
    """Why its sessions that have not begun do not start, even if slots are free. Empty: nothing holds them."""
    submitted_at: float
    ended_at: float | None = None


class SessionProgress(Struct, frozen=True, kw_only=True):
    """A session of a task, as the scheduler sees it."""

    session_id: str
    stage: Stage
    attempt: int
    runner_id: str | None = None
    termination_reason: TerminationReason | None = None
    detail: str = ""


class TaskDetail(Struct, frozen=True, kw_only=True):
    """A task with its sessions."""

    task: TaskView
    sessions: tuple[SessionProgress, ...]


class TaskList(Struct, frozen=True, kw_only=True):
    """The answer to GET /tasks."""

    tasks: tuple[TaskView, ...]


class RunDeleted(Struct, frozen=True, kw_only=True):
    """DELETE /runs/{run_id}: the run is no longer listed. Its blobs are removed later."""

    run_id: str
    tasks: int
    """The number of its tasks."""


class InstanceView(Struct, frozen=True, kw_only=True):
    """An instance of a service."""

    instance_id: str
    service: str
    alive: bool
    """Whether a heartbeat arrived within a lease."""
    stopping: bool
    active: bool
    """Whether this is the active one of the schedulers of its name."""
    address: str | None
    capacity: int
    running: tuple[Running, ...]
    warm: tuple[WarmSandboxes, ...] = ()
    """The sandboxes that a runner has prepared ahead."""
    sandboxes: SandboxOffer | None = None
    """The sandboxes that a runner can open. None: it does not say, or is no runner."""
    partitions: tuple[int, ...]
    lag: tuple[TopicLag, ...]
    """How far it is behind in each topic that it reads."""
    quarantined_seconds: float | None
    """How long a runner that lost sandboxes in a row still gets no sessions. 0: it gets one at a time. None: it is not quarantined."""


class EngineView(Struct, frozen=True, kw_only=True):
    """A registered engine."""

    engine_id: str
    draining: bool
    kind: str | None
    """The kind of the engine. None: only its draining is known."""
    url: str | None
    policy: str | None


class FleetView(Struct, frozen=True, kw_only=True):
    """The answer to GET /fleet."""

    instances: tuple[InstanceView, ...]
    engines: tuple[EngineView, ...]
    held: str = ""
    """Why no new session starts. Empty: nothing holds them."""


class EngineRequest(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The body of POST /engines."""

    engine_id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
    kind: str
    """The adapter: `embedded`, `vllm`, `vllm_chat` or `scripted`."""
    url: Annotated[str, Meta(pattern="^https?://")]
    policy: str | None = None
    """The policy that the engine samples. None: the engine is frozen, and a model map addresses it by its id."""
    max_concurrency: Annotated[int, Meta(ge=1)] = 64
    vision: bool = False
    """Whether the engine takes images (`vllm_chat` with a vision model)."""


class RecordingView(Struct, frozen=True, kw_only=True):
    """Where a harness that somebody else runs finds its model."""

    base_url: str
    """The base URL, without `/v1`."""
    key: str
    environment: dict[str, str]
    """The variables of every provider, set to this session."""


class Problem(Struct, frozen=True, kw_only=True):
    """What was wrong with a request."""

    message: str
    field: str | None = None
    active: str | None = None
    """The base URL of the active scheduler, which answers this. None: this one does, or none is known."""


class ProblemAnswer(Struct, frozen=True, kw_only=True):
    """The body of every answer of status 400 and above."""

    error: Problem


class Publish(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The body of POST /policies/{name}/versions of the trainer-bridge."""

    path: Annotated[str, Meta(pattern="^/[^\\x00]*$")]
    """The folder of the weights, as bridge and engines see it. Each version needs a folder of its own."""
    version: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    """The number of the version. 0 stands for the weights that the engines were started with."""
    digest: str | None = None
    """The digest of the weights, if the trainer knows it. A folder with another digest is refused. None: not compared."""
    canary: Canary | None = None
    """The canary. None: the engines only prove that logprobs change, not that they are right."""


class EngineUpdate(Struct, frozen=True, kw_only=True):
    """An engine that took a version."""

    engine_id: str
    seconds: float
    """The time for loading and proving."""
    paused_seconds: float
    """The part of this time in which nothing was sampled."""
    change: float | None
    """The largest change of a canary logprob."""
    gap: float | None
    """The largest difference from the trainer's logprobs. None: the trainer gave none."""


class PublishAnswer(Struct, frozen=True, kw_only=True):
    """A version that is published, now or earlier."""

    policy: str
    version: int
    location: str
    digest: str | None
    gap: float | None
    published_at: float
    new: bool
    engines: tuple[EngineUpdate, ...] = ()
    """The engines that this request updated."""
    warnings: tuple[str, ...] = ()


class VersionView(Struct, frozen=True, kw_only=True):
    """A version of a policy."""

    version: int
    state: str
    """`staged`, `published` or `retired`."""
    at: float
    location: str = ""
    digest: str | None = None
    gap: float | None = None
    reason: str = ""
    """Why the version was retired."""


class PolicyView(Struct, frozen=True, kw_only=True):
    """The answer to GET /policies/{name}."""

    policy: str
    newest: int | None
    """The newest version. None: none was published."""
    versions: tuple[VersionView, ...]
    engines: tuple[str, ...]


class PolicyList(Struct, frozen=True, kw_only=True):
    """The answer to GET /policies."""

    policies: tuple[PolicyView, ...]


class ServedEngine(Struct, frozen=True, kw_only=True):
    """An engine that a gateway has checked and sends calls to."""

    engine_id: str
    policy: str | None
    context_length: int
    """The number of ids of prompt and answer together."""
    any_temperature: bool
    """Whether its logprobs are those of the sampled distribution at any temperature above 0. If not, only at 1."""
    filters: bool
    """Whether this also holds with top-p, top-k and min-p. If not, only with all of them off."""
    renders_tools: bool = True
    """Whether the chat template of its policy shows tools to the model."""


class ServedEngines(Struct, frozen=True, kw_only=True):
    """The answer of GET /engines of the gateway."""

    engines: tuple[ServedEngine, ...]


class TokenPieces(Struct, frozen=True, kw_only=True):
    """The answer of POST /tokens/pieces of the gateway: the bytes of each id, in base64."""

    pieces: tuple[str, ...]
