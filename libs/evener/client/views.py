"""What the HTTP endpoints say and are told, as JSON."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from evener.proto.ends import End
from evener.proto.fleet import Running
from evener.proto.spec import Purpose, TaskRef
from evener.proto.state import Stage
from evener.proto.tasks import TaskOptions, TaskOutcome
from evener.proto.trajectories import TrajectoryBuilt


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


class SessionView(Struct, frozen=True, kw_only=True):
    """GET /sessions/{id} of the reconstructor: a session that has ended, built again from the log."""

    trajectory: TrajectoryBuilt
    messages: tuple[tuple[dict[str, Any], ...], ...]
    """Per row: the canonical messages of its branch. Without rows: those of the main branch."""


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
    """`embedded`, `vllm` or `scripted`."""
    url: Annotated[str, Meta(pattern="^https?://")]
    policy: str | None = None
    """The policy that it samples. None: a frozen engine, addressed by its id."""
    max_concurrency: Annotated[int, Meta(ge=1)] = 64


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


class Publish(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /policies of the trainer-bridge."""

    policy: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
    version: Annotated[int, Meta(ge=0)]
    location: Annotated[str, Meta(min_length=1)]
    digest: str | None = None


class Pieces(Struct, frozen=True, kw_only=True):
    """POST /tokens/pieces of the gateway: per id its bytes, base64."""

    pieces: tuple[str, ...]


class Replayed(Struct, frozen=True, kw_only=True):
    """POST /replay/...: where the record stands now, too."""

    topic: str
    partition: int
    offset: int
