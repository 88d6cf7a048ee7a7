"""The state of the scheduler and of the bridge, kept in the compacted topics `state.scheduler` and `state.bridge`.

Each service writes its state in the transactions of its outputs.
"""

from enum import StrEnum

from msgspec import Struct

from evener.proto.blobs import BlobRef
from evener.proto.reasons import ExclusionReason, TerminationReason
from evener.proto.sessions import Event
from evener.proto.spec import GroupOptions
from evener.proto.tasks import TaskOutcome, TaskSubmitted
from evener.proto.trajectories import Accounting, GroupEvent


class Stage(StrEnum):
    """How far a session is, as the scheduler sees it."""

    QUEUED = "queued"
    DISPATCHED = "dispatched"
    RUNNING = "running"
    GIVEN_UP = "given_up"
    """SessionGivenUp is to be sent or was sent, and the session's seal was not read yet."""
    SEALED = "sealed"


class SessionState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One session of a task."""

    session_id: str
    stage: Stage = Stage.QUEUED
    attempt: int = 0
    """The last attempt that was dispatched, or the earlier one that sealed the session. 0: none was dispatched."""
    runner_id: str | None = None
    failed_on: tuple[str, ...] = ()
    """The runners at which attempts were lost. A further attempt goes to another one, if there is one."""
    handed_back: int = 0
    """The number of attempts that their runner handed back because it was stopped. They do not count as lost."""
    dispatched_at: float | None = None
    first_dispatched_at: float | None = None
    termination_reason: TerminationReason | None = None
    """The reason in the seal, or the reason why the session was given up."""
    detail: str = ""
    sampled_tokens: int = 0
    """The number of tokens that were sampled in all attempts, once the session is sealed."""
    sealed_at: float | None = None
    """The time at which the session was sealed. None: it is not sealed, or an older scheduler wrote this state."""


class TaskState(Event, frozen=True, kw_only=True, tag="task_state.v1"):
    """A task, its sessions, and how it ended."""

    scheduler: str = "main"
    """The name of the scheduler that owns the task."""
    submitted: TaskSubmitted
    sessions: tuple[SessionState, ...]
    cancelled: str | None = None
    """Why the task was cancelled. None: it was not."""
    outcome: TaskOutcome | None = None
    """How the task ended. None: it has not ended."""
    reason: str = ""
    ended_at: float | None = None
    rewards: tuple[float | None, ...] = ()
    """The rewards of the task's sessions, by index, once its group has ended. None where a session has no reward."""
    accounting: Accounting | None = None
    """Where the group's sampled tokens went. None: the group has not ended, or an older scheduler wrote this."""
    trace: dict[str, str] = {}
    """The trace context of the submission, as HTTP headers. Whatever happens to the task continues that trace."""


class DeletedTask(Event, frozen=True, kw_only=True, tag="deleted_task.v1"):
    """Replaces the state of a task whose run was deleted, as long as the log may hold records of the task."""

    scheduler: str = "main"
    """The name of the scheduler that owned the task."""
    task_id: str
    """The id, which no other task may have as long as this record exists: its sessions have ended for good."""
    run_id: str
    deleted_at: float
    swept: bool = False
    """Whether the blobs that only deleted tasks name are removed."""


class ScoredMember(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A scored session that no group's record holds yet: the fields that the rules need, and the place where the session is stored."""

    index: int
    """The number of the session in its group, from 0."""
    session: BlobRef | None = None
    """The session's TrajectoryScored as msgpack. None: only before the state is written."""
    excluded: ExclusionReason | None = None
    """Why the session cannot be used, apart from the versions of its tokens. None: it can be used."""
    fails_group: bool = False
    """Whether the session could not start, so that another attempt would not start either."""
    reward: float | None = None
    """The reward. None: the session is not graded."""
    versions: tuple[int, ...] = ()
    """The policy versions of its trainable tokens."""


class GroupState(GroupEvent, frozen=True, kw_only=True, tag="group_state.v1"):
    """A group, from its first scored session until none of its sessions can arrive any more."""

    options: GroupOptions
    scored: tuple[ScoredMember, ...] = ()
    """The sessions that were scored, in the order of their arrival. Of a group that has ended: those that came later."""
    seen: tuple[int, ...] = ()
    """The indices of all sessions that were scored, those after the group's end included."""
    ended_at: float | None = None
    """When the group ended. None: it has not ended."""
    offset: int = 0
    """The group's record is in its topic at this offset, or at most one transaction after it. 0: the group has not ended."""
