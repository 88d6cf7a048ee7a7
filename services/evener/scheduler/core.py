"""The state of tasks and sessions: events and commands go in, changed states and records to write come out.

A `Draft` collects what one commit writes. It never changes its inputs: if the commit fails, the draft is discarded and nothing has
happened.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct, structs

from evener.proto.ids import group_of, session_of
from evener.proto.reasons import END_POLICY, TerminationReason
from evener.proto.sessions import (
    AttemptEnded,
    Event,
    SessionCancelled,
    SessionDispatched,
    SessionGivenUp,
    SessionSealed,
    SessionStarted,
)
from evener.proto.spec import Purpose
from evener.proto.state import DeletedTask, SessionState, Stage, TaskState
from evener.proto.tasks import TaskCancelled, TaskDeleted, TaskEnded, TaskOutcome, TaskSubmitted, session_spec
from evener.proto.topics import Topic
from evener.proto.trajectories import GroupFailed, GroupMerged, GroupOutcome
from evener.runtime.backoff import Backoff

NEXT: Final[dict[Stage, frozenset[Stage]]] = {
    Stage.QUEUED: frozenset({Stage.DISPATCHED, Stage.RUNNING, Stage.GIVEN_UP, Stage.SEALED}),  # RUNNING, SEALED: lost, yet alive
    Stage.DISPATCHED: frozenset({Stage.RUNNING, Stage.QUEUED, Stage.GIVEN_UP, Stage.SEALED}),
    Stage.RUNNING: frozenset({Stage.QUEUED, Stage.GIVEN_UP, Stage.SEALED}),  # QUEUED: the next attempt
    Stage.GIVEN_UP: frozenset({Stage.SEALED}),
    Stage.SEALED: frozenset(),
}
HELD: Final = frozenset({Stage.DISPATCHED, Stage.RUNNING})
"""Stages in which a runner holds the session, or will."""
OVER: Final = frozenset({Stage.GIVEN_UP, Stage.SEALED})
"""Stages after which no further attempt starts."""

ATTEMPT_PAUSES: Final = Backoff(0.5, 60.0)
"""The least time between the dispatches of two attempts of a session."""
LEASE_EXPIRED: Final = "lease_expired"
"""The reason of an attempt that is lost because its runner stopped naming it in its heartbeats."""
MAX_DETAIL_BYTES: Final = 300
"""The limit of a session's reason in the state, so that a task of 1024 sessions fits into one record."""


NOTHING_DELETED: Final[Mapping[str, DeletedTask]] = MappingProxyType({})


class Write(Struct, frozen=True):
    """A record to write."""

    topic: Topic
    key: str
    event: Event
    trace: dict[str, str]
    """The trace context of its task."""


class EndedAttempt(Struct, frozen=True, kw_only=True):
    """An attempt that has ended, and where."""

    session_id: str
    runner_id: str
    reason: str
    """A TerminationReason, or LEASE_EXPIRED."""
    detail: str
    lost: bool
    """Whether it ended without a result."""


class CommandRefused(Exception):
    """The base of the errors for which a client's command is refused."""


class TaskDiffers(CommandRefused):
    """The task id is taken by a task with other content."""


class TaskWasDeleted(CommandRefused):
    """The task id belonged to a task whose run was deleted."""


class RunIsOpen(CommandRefused):
    """A task of the run has not ended, or a session of one has not."""


class Draft:
    """The tasks as they will be once this draft is committed, and the records of that commit."""

    def __init__(
        self, tasks: Mapping[str, TaskState], *, now: float, scheduler: str = "main", deleted: Mapping[str, DeletedTask] = NOTHING_DELETED
    ) -> None:
        """`now` is in Unix seconds, `scheduler` is the name of the writing scheduler. `deleted`: the tasks of deleted runs."""
        self._tasks = tasks
        self._deleted = deleted
        self._scheduler = scheduler
        self._now = now
        self.changed: dict[str, TaskState] = {}
        """The changed tasks by id, which go to the state topic."""
        self.deleted: dict[str, DeletedTask] = {}
        """What takes the place of the states of deleted tasks, by id, or has changed since."""
        self.forgotten: list[str] = []
        """The ids of deleted tasks that leave the state."""
        self.writes: list[Write] = []
        self.given_up: list[SessionGivenUp] = []
        """What to tell the partitions' owners after the commit."""
        self.ended: list[EndedAttempt] = []
        """The attempts that have ended, as far as a runner had them."""

    def task(self, task_id: str) -> TaskState | None:
        """Return the task as this draft leaves it."""
        if task_id in self.deleted:
            return None
        return self.changed.get(task_id) or self._tasks.get(task_id)

    def session(self, session_id: str) -> SessionState | None:
        """Return a session as this draft leaves it. None: the session is not ours."""
        task, index = self._session(session_id)
        return None if task is None else task.sessions[index]

    def submit(self, submitted: TaskSubmitted, trace: dict[str, str] | None = None) -> TaskState:
        """Accept a task and the trace context of its submission. Submitting it again changes nothing. Raises CommandRefused."""
        if submitted.task_id in self._deleted:
            raise TaskWasDeleted
        known = self.task(submitted.task_id)
        if known is not None:
            if not _is_same(known.submitted, submitted):
                raise TaskDiffers
            return known
        group = group_of(submitted.task_id)
        sessions = tuple(SessionState(session_id=session_of(group, index)) for index in range(submitted.options.samples))
        task = self._put(TaskState(scheduler=self._scheduler, submitted=submitted, sessions=sessions, trace=trace or {}))
        self._write(task, Topic.TASKS, task.submitted.task_id, submitted)
        return task

    def cancel(self, task_id: str, reason: str) -> TaskState | None:
        """Give up all unfinished sessions of a task that has not ended. None: there is no such task."""
        task = self.task(task_id)
        if task is None or task.outcome is not None or task.cancelled is not None:
            return task
        reason = cut(reason) or "cancelled"
        self._write(task, Topic.TASKS, task_id, TaskCancelled(task_id=task_id, reason=reason, cancelled_at=self._now))
        self._put(structs.replace(task, cancelled=reason))
        return self._give_up_all(task_id, frozenset({Stage.QUEUED, *HELD}), TerminationReason.CANCELLED, reason)

    def delete(self, run_id: str, sees: Callable[[str], bool] = lambda _: True) -> None:
        """Delete the tasks of a run, all of which have ended. `sees`: those of which teams. Raises RunIsOpen."""
        known = filter(None, map(self.task, self._tasks))
        tasks = [task for task in known if task.submitted.options.run_id == run_id and sees(task.submitted.team)]
        if any(is_open(task) for task in tasks):
            raise RunIsOpen
        for task in tasks:
            task_id, team = task.submitted.task_id, task.submitted.team
            self._write(task, Topic.TASKS, task_id, TaskDeleted(task_id=task_id, run_id=run_id, team=team, deleted_at=self._now))
            self.changed.pop(task_id, None)
            self.deleted[task_id] = DeletedTask(scheduler=self._scheduler, task_id=task_id, run_id=run_id, deleted_at=self._now)

    def swept(self, task_ids: Iterable[str]) -> None:
        """Note that the blobs that only these deleted tasks name are removed."""
        self.deleted.update({task_id: structs.replace(self._deleted[task_id], swept=True) for task_id in task_ids})

    def forget(self, task_ids: Iterable[str]) -> None:
        """Forget deleted tasks: their ids are as good as new."""
        self.forgotten += task_ids

    def read(self, event: object) -> None:
        """Apply an event of another service. An event of a foreign task, or one that was applied before, changes nothing."""
        match event:
            case SessionStarted():
                self._started(event)
            case AttemptEnded():
                self._attempt_over(event.session_id, event.attempt, event.termination_reason, event.detail or event.termination_reason)
            case SessionSealed():
                self._sealed(event)
            case GroupMerged() | GroupFailed():
                self._group_ended(event)
            case _:
                pass

    def lost(self, session_id: str, attempt: int) -> None:
        """Count an attempt as lost, because its lease ran out."""
        self._attempt_over(session_id, attempt, LEASE_EXPIRED, "its runner did not mention it")

    def dispatch(self, session_id: str, runner_id: str, *, lease_seconds: float, boot_id: str | None = None) -> None:
        """Hand the next attempt of a queued session to a runner, and to its process of this boot id if that is known."""
        task, index = self._session(session_id)
        if task is None or task.sessions[index].stage is not Stage.QUEUED:
            return
        session = task.sessions[index]
        attempt = session.attempt + 1
        first = self._now if session.first_dispatched_at is None else session.first_dispatched_at
        dispatched = SessionDispatched(
            session_id=session_id,
            attempt=attempt,
            runner_id=runner_id,
            dispatched_at=self._now,
            lease_seconds=lease_seconds,
            boot_id=boot_id,
            spec=session_spec(task.submitted, group_of(task.submitted.task_id), index),
        )
        self._write(task, Topic.DISPATCH, runner_id, dispatched)
        self._move(task, index, Stage.DISPATCHED, attempt=attempt, runner_id=runner_id, dispatched_at=self._now, first_dispatched_at=first)

    def deadlines(self, task_ids: Iterable[str]) -> None:
        """Give up the sessions of these tasks whose hard deadline has passed."""
        for task_id in task_ids:
            task = self.task(task_id)
            limit = None if task is None else task.submitted.options.budgets.deadline_seconds
            if task is None or limit is None:
                continue
            for index, session in enumerate(task.sessions):
                started = session.first_dispatched_at
                if session.stage not in OVER and started is not None and self._now - started > limit:
                    self._give_up(task_id, index, TerminationReason.DEADLINE, f"{limit:g} seconds after its first dispatch")

    def _started(self, event: SessionStarted) -> None:
        task, index = self._session(event.session_id)
        if task is None:
            return
        session = task.sessions[index]
        expected = session.attempt == event.attempt and session.runner_id == event.runner_id
        if expected and session.stage in {Stage.DISPATCHED, Stage.QUEUED}:
            self._move(task, index, Stage.RUNNING)

    def _attempt_over(self, session_id: str, attempt: int, reason: str, detail: str) -> None:
        """Queue the next attempt, or give the session up if it has no attempts left."""
        task, index = self._session(session_id)
        if task is None or task.sessions[index].attempt != attempt or task.sessions[index].stage not in HELD:
            return
        session = task.sessions[index]
        self._note_end(session, reason, detail, lost=True)
        if reason == TerminationReason.STOPPED:
            self._move(task, index, Stage.QUEUED, detail=cut(detail), handed_back=session.handed_back + 1)
            attempt -= session.handed_back + 1
        else:
            failed_on = dict.fromkeys((*session.failed_on, session.runner_id or ""))
            self._move(task, index, Stage.QUEUED, detail=cut(detail), failed_on=tuple(failed_on))
            attempt -= session.handed_back
        if task.outcome is not None:
            self._give_up(task.submitted.task_id, index, TerminationReason.CANCELLED, "its group had ended")
        elif attempt >= task.submitted.options.budgets.attempts:
            self._give_up(task.submitted.task_id, index, TerminationReason.ATTEMPTS_USED_UP, detail)

    def _sealed(self, event: SessionSealed) -> None:
        task, index = self._session(event.session_id)
        if task is None or task.sessions[index].stage is Stage.SEALED:
            return
        session = task.sessions[index]
        attempt = session.attempt
        if event.attempt < attempt and session.stage in HELD:
            self._cancel(task, session, f"attempt {event.attempt} was sealed")
            attempt = event.attempt  # a higher one that a runner lists still takes its place
        else:
            self._note_end(session, event.termination_reason, event.detail, lost=False)
        self._move(
            task,
            index,
            Stage.SEALED,
            attempt=attempt,
            termination_reason=event.termination_reason,
            detail=cut(event.detail),
            sampled_tokens=event.sampled_tokens,
            sealed_at=event.sealed_at,
        )
        if END_POLICY[event.termination_reason].fails_task:
            self._give_up_all(task.submitted.task_id, frozenset({Stage.QUEUED}), event.termination_reason, event.detail)

    def _note_end(self, session: SessionState, reason: str, detail: str, *, lost: bool) -> None:
        if session.stage in HELD and session.runner_id is not None:
            ended = EndedAttempt(session_id=session.session_id, runner_id=session.runner_id, reason=reason, detail=cut(detail), lost=lost)
            self.ended.append(ended)

    def _group_ended(self, event: GroupOutcome) -> None:
        task = self.task(event.task_id)
        if task is None or task.outcome is not None:
            return
        outcome, reason = how_it_ended(task, event)
        rewards = tuple(member.reward for member in event.members)
        ended = TaskEnded(task_id=event.task_id, outcome=outcome, reason=reason, ended_at=self._now)
        self._write(task, Topic.TASKS, event.task_id, ended)
        self._put(structs.replace(task, outcome=outcome, reason=reason, ended_at=self._now, rewards=rewards, accounting=event.accounting))
        self._give_up_all(event.task_id, frozenset({Stage.QUEUED}), TerminationReason.CANCELLED, "its group had ended")

    def _give_up_all(self, task_id: str, stages: frozenset[Stage], end: TerminationReason, detail: str) -> TaskState | None:
        task = self.task(task_id)
        for index, session in enumerate(task.sessions if task else ()):
            if session.stage in stages:
                self._give_up(task_id, index, end, detail)
        return self.task(task_id)

    def _give_up(self, task_id: str, index: int, end: TerminationReason, detail: str) -> None:
        task = self.task(task_id)
        if task is None:
            return
        session = task.sessions[index]
        self._cancel(task, session, detail or end)
        after = self._move(task, index, Stage.GIVEN_UP, termination_reason=end, detail=cut(detail))
        self.given_up.append(given_up(after, index, now=self._now))

    def _cancel(self, task: TaskState, session: SessionState, reason: str) -> None:
        """Tell the runner that holds the session, if there is one."""
        if session.stage in HELD and session.runner_id is not None:
            cancelled = SessionCancelled(session_id=session.session_id, runner_id=session.runner_id, reason=reason)
            self._write(task, Topic.DISPATCH, session.runner_id, cancelled)

    def _session(self, session_id: str) -> tuple[TaskState | None, int]:
        """Return the task of a session, and the session's index. None: the session is not ours."""
        group_id, _, number = session_id.rpartition(".")
        task = self.task(group_id)
        if task is None or not number.isdecimal() or int(number) >= len(task.sessions):
            return None, 0
        return task, int(number)

    def _move(self, task: TaskState, index: int, stage: Stage, **changes: Any) -> TaskState:
        before = task.sessions[index]
        if stage not in NEXT[before.stage]:
            msg = f"session {before.session_id}: {before.stage} does not lead to {stage}"
            raise AssertionError(msg)
        after = structs.replace(before, stage=stage, **changes)
        sessions = (*task.sessions[:index], after, *task.sessions[index + 1 :])
        return self._put(structs.replace(task, sessions=sessions))

    def _write(self, task: TaskState, topic: Topic, key: str, event: Event) -> None:
        self.writes.append(Write(topic, key, event, task.trace))

    def _put(self, task: TaskState) -> TaskState:
        self.changed[task.submitted.task_id] = task
        return task


def _is_same(known: TaskSubmitted, again: TaskSubmitted) -> bool:
    """Return whether a submission says the same as an earlier one of its id, whoever sent it and whenever."""
    told = structs.replace(known, submitted_at=again.submitted_at, principal=again.principal, sandbox_digest=again.sandbox_digest)
    return told == again


def how_it_ended(task: TaskState, event: GroupOutcome) -> tuple[TaskOutcome, str]:
    """Return the outcome of a task whose group ended, with the reason why it was not delivered or why some of its sessions are excluded."""
    if isinstance(event, GroupMerged):
        return (TaskOutcome.MERGED if event.purpose is Purpose.TRAIN else TaskOutcome.KEPT), cut(event.reason)
    if task.cancelled is not None:
        return TaskOutcome.CANCELLED, task.cancelled
    if event.dropped_by is not None:
        return TaskOutcome.DROPPED, cut(event.reason)
    ends = [
        session for session in task.sessions if session.termination_reason is not None and END_POLICY[session.termination_reason].fails_task
    ]
    return TaskOutcome.FAILED, next((session.detail for session in ends if session.detail), cut(event.reason))


def given_up(task: TaskState, index: int, *, now: float) -> SessionGivenUp:
    """Return the event that tells the owner that a session in stage GIVEN_UP gets no further attempt."""
    session = task.sessions[index]
    return SessionGivenUp(
        session_id=session.session_id,
        attempt=session.attempt,
        termination_reason=session.termination_reason or TerminationReason.CANCELLED,
        detail=session.detail,
        given_up_at=now,
        spec=session_spec(task.submitted, group_of(task.submitted.task_id), index),
    )


def is_open(task: TaskState) -> bool:
    """Return whether the task can still change."""
    return task.outcome is None or any(session.stage is not Stage.SEALED for session in task.sessions)


def may_start_at(session: SessionState) -> float:
    """Return the time from which a queued session's next attempt may be dispatched."""
    if session.dispatched_at is None:
        return 0.0
    return session.dispatched_at + ATTEMPT_PAUSES.seconds(session.attempt)


def cut(detail: str) -> str:
    """Return a reason, shortened to the length that the state keeps."""
    return detail.encode()[:MAX_DETAIL_BYTES].decode(errors="ignore")
