"""What the HTTP endpoints say and are told, as JSON."""

from typing import Annotated

from msgspec import Meta, Raw, Struct

from evener.proto.ends import End
from evener.proto.fleet import Canary, Running
from evener.proto.spec import Purpose, TaskRef
from evener.proto.state import Stage
from evener.proto.tasks import TaskOptions, TaskOutcome
from evener.proto.trajectories import Accounting


class Submission(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """POST /tasks."""

    task_id: str | None = None
    """The client's own id makes the submission idempotent. None: one is drawn."""
    task: TaskRef | None = None
    """Its archive was put into the blob store before. None: a recording without a task."""
    options: TaskOptions


class TaskView(Struct, frozen=True, kw_only=True):
    """A task and how far it is."""

    cursor: int
    """Rises with each change: `after` in GET /events."""
    task_id: str
    run_id: str
    name: str | None
    """Of the task. None: a recording without a task."""
    harness: str
    purpose: Purpose
    samples: int
    stages: dict[Stage, int]
    """Sessions by stage."""
    ends: dict[End, int]
    """Sessions that ended or were given up, by reason."""
    attempts: int
    """Dispatches of all sessions together."""
    rewards: tuple[float | None, ...] = ()
    """By session, once the group ended; None where there is none."""
    accounting: Accounting | None = None
    """Of the group, once it ended: where the sampled tokens went. None: not known."""
    cancelled: str | None = None
    outcome: TaskOutcome | None = None
    """None: not ended."""
    reason: str = ""
    submitted_at: float
    ended_at: float | None = None


class SessionProgress(Struct, frozen=True, kw_only=True):
    """A session of a task, as the scheduler sees it."""

    session_id: str
    stage: Stage
    attempt: int
    runner_id: str | None = None
    end: End | None = None
    detail: str = ""


class TaskDetail(Struct, frozen=True, kw_only=True):
    """A task with its sessions."""

    task: TaskView
    sessions: tuple[SessionProgress, ...]


class TaskList(Struct, frozen=True, kw_only=True):
    """GET /tasks."""

    tasks: tuple[TaskView, ...]


class InstanceView(Struct, frozen=True, kw_only=True):
    """An instance of a service."""

    instance_id: str
    service: str
    alive: bool
    """Heard within a lease."""
    stopping: bool
    address: str | None
    capacity: int
    running: tuple[Running, ...]
    harnesses: tuple[str, ...]
    partitions: tuple[int, ...]


class EngineView(Struct, frozen=True, kw_only=True):
    """A registered engine."""

    engine_id: str
    draining: bool
    kind: str | None
    """None: known only as draining."""
    url: str | None
    policy: str | None


class FleetView(Struct, frozen=True, kw_only=True):
    """GET /fleet."""

    instances: tuple[InstanceView, ...]
    engines: tuple[EngineView, ...]


class EngineRequest(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """POST /engines."""

    engine_id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
    kind: str
    """`embedded`, `vllm`, `vllm_chat` or `scripted`."""
    url: Annotated[str, Meta(pattern="^https?://")]
    policy: str | None = None
    """The policy that it samples. None: a frozen engine, addressed by its id."""
    max_concurrency: Annotated[int, Meta(ge=1)] = 64
    vision: bool = False
    """It takes images (`vllm_chat` with a model that does)."""


class Recording(Struct, frozen=True, kw_only=True):
    """Where a harness that somebody else runs finds its model."""

    base_url: str
    key: str
    environment: dict[str, str]
    """Variables of every provider, set to this session."""


class Problem(Struct, frozen=True, kw_only=True):
    """What was wrong with a request."""

    message: str
    field: str | None = None


class ProblemAnswer(Struct, frozen=True, kw_only=True):
    """Every answer of status 400 and above."""

    error: Problem


class Publish(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """POST /policies/{name}/versions of the trainer-bridge."""

    path: Annotated[str, Meta(pattern="^/[^\\x00]*$")]
    """Folder of the weights, as bridge and engines see it; its own for each version."""
    version: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    """0 is what engines were started with."""
    digest: str | None = None
    """Of the weights, where the trainer knows it: refused if the folder has another. None: not compared."""
    canary: Canary | None = None
    """None: it is only seen that logprobs change, not that they are right."""


class EngineUpdate(Struct, frozen=True, kw_only=True):
    """An engine that took a version."""

    engine_id: str
    seconds: float
    """Loading and proving."""
    paused_seconds: float
    """Of these: nothing was sampled."""
    change: float | None
    """Largest change of a canary logprob."""
    gap: float | None
    """Largest difference to the trainer's. None: it gave none."""


class PublishAnswer(Struct, frozen=True, kw_only=True):
    """A version that is published now, or was before."""

    policy: str
    version: int
    location: str
    digest: str | None
    gap: float | None
    published_at: float
    new: bool
    engines: tuple[EngineUpdate, ...] = ()
    """Updated by this request."""
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
    """Why it was retired."""


class PolicyView(Struct, frozen=True, kw_only=True):
    """GET /policies/{name}."""

    policy: str
    newest: int | None
    """None: none was published."""
    versions: tuple[VersionView, ...]
    engines: tuple[str, ...]


class PolicyList(Struct, frozen=True, kw_only=True):
    """GET /policies."""

    policies: tuple[PolicyView, ...]


class ServedEngine(Struct, frozen=True, kw_only=True):
    """An engine that a gateway has checked and gives calls to."""

    engine_id: str
    policy: str | None
    context_length: int
    """Ids of prompt and answer together."""
    any_temperature: bool
    """True: its logprobs are those of what it samples at any temperature above 0. False: only at 1."""
    filters: bool
    """True: also with top-p, top-k and min-p. False: only with all of them off."""
    renders_tools: bool = True
    """False: the chat template of its policy shows the model no tools."""


class ServedEngines(Struct, frozen=True, kw_only=True):
    """GET /engines of the gateway."""

    engines: tuple[ServedEngine, ...]


class Pieces(Struct, frozen=True, kw_only=True):
    """POST /tokens/pieces of the gateway: per id its bytes, base64."""

    pieces: tuple[str, ...]


class Replayed(Struct, frozen=True, kw_only=True):
    """POST /replay/...: where the record stands now, too."""

    topic: str
    partition: int
    offset: int


class Delivered(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A frame of GET /groups/follow: a record of `trajectories.merged`, and where the next one of its partition is read."""

    partition: int
    offset: int
    next_offset: int
    group: Raw
    """The GroupMerged or GroupFailed, as msgpack."""
