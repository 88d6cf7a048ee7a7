"""The writers' own states, kept in the compacted topics `state.scheduler` and `state.bridge`, in the transactions of their outputs."""

from enum import StrEnum

from msgspec import Struct

from evener.proto.ends import End
from evener.proto.sessions import Event
from evener.proto.tasks import TaskOutcome, TaskSubmitted
from evener.proto.trajectories import Accounting, TrajectoryScored


class Stage(StrEnum):
    """Where a session is, as the scheduler sees it."""

    QUEUED = "queued"
    DISPATCHED = "dispatched"
    RUNNING = "running"
    GIVEN_UP = "given_up"
    """SessionGivenUp is to be sent, or was, and its seal has not been read."""
    SEALED = "sealed"


class SessionState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One session of a task."""

    session_id: str
    stage: Stage = Stage.QUEUED
    attempt: int = 0
    """The last one dispatched. 0: none. Of a session that an earlier attempt sealed: that one."""
    runner_id: str | None = None
    dispatched_at: float | None = None
    first_dispatched_at: float | None = None
    end: End | None = None
    """Of the seal; or, given up, the reason."""
    detail: str = ""


class TaskState(Event, frozen=True, kw_only=True, tag="task_state.v1"):
    """A task, its sessions, and how it ended."""

    scheduler: str = "main"
    """Name of the scheduler that owns it."""
    submitted: TaskSubmitted
    sessions: tuple[SessionState, ...]
    cancelled: str | None = None
    """Why it was cancelled. None: it was not."""
    outcome: TaskOutcome | None = None
    """None: not ended."""
    reason: str = ""
    ended_at: float | None = None
    rewards: tuple[float | None, ...] = ()
    """Of its sessions, by index, once the group ended; None where there is none."""
    accounting: Accounting | None = None
    """Of its group: where the sampled tokens went. None: the group has not ended, or an older scheduler wrote this."""


class GroupState(Event, frozen=True, kw_only=True, tag="group_state.v1"):
    """A group on its way to the trainers."""

    group_id: str
    size: int
    scored: tuple[TrajectoryScored, ...] = ()
    """The first of each session; empty once delivered."""
    seen: tuple[str, ...] = ()
    """Session ids seen."""
    delivered: bool = False
    delivered_at: float | None = None
