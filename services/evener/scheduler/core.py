"""What happens to tasks and sessions: events and commands in, changed states and records to write out.

A `Draft` gathers all that one commit is to write. It never changes what it was given: a draft whose commit failed is thrown
away, and nothing has happened.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct, structs

from evener.proto.ends import CONSEQUENCES, End
from evener.proto.ids import group_of, session_of
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
from evener.proto.state import SessionState, Stage, TaskState
from evener.proto.tasks import TaskCancelled, TaskEnded, TaskOutcome, TaskSubmitted, session_spec
from evener.proto.topics import Topic
from evener.proto.trajectories import GroupFailed, GroupMerged

NEXT: Final[dict[Stage, frozenset[Stage]]] = {
    Stage.QUEUED: frozenset({Stage.DISPATCHED, Stage.RUNNING, Stage.GIVEN_UP, Stage.SEALED}),  # RUNNING, SEALED: lost, yet alive
    Stage.DISPATCHED: frozenset({Stage.RUNNING, Stage.QUEUED, Stage.GIVEN_UP, Stage.SEALED}),
    Stage.RUNNING: frozenset({Stage.QUEUED, Stage.GIVEN_UP, Stage.SEALED}),  # QUEUED: the next attempt
    Stage.GIVEN_UP: frozenset({Stage.SEALED}),
    Stage.SEALED: frozenset(),
}
HELD: Final = frozenset({Stage.DISPATCHED, Stage.RUNNING})
"""A runner holds the session, or will."""
OVER: Final = frozenset({Stage.GIVEN_UP, Stage.SEALED})
"""No further attempt will start."""

RETRY_SECONDS: Final = 0.5
"""From the dispatch of attempt 1 to that of attempt 2 at least; doubles with each attempt."""
MAX_RETRY_SECONDS: Final = 60.0
MAX_DETAIL_BYTES: Final = 300
"""Of a session's reason in the state: a task of 1024 sessions fits one record."""


class Write(Struct, frozen=True):
    """A record to write."""

    topic: Topic
    key: str
    event: Event


class TaskDiffers(Exception):
    """The task id is taken by other content."""


class Draft:
    """The tasks as they will be once this draft is committed, and what its commit writes."""

    def __init__(self, tasks: Mapping[str, TaskState], *, now: float, scheduler: str = "main") -> None:
        """`now` is in Unix seconds, `scheduler` the name of the one that writes."""
        self._tasks = tasks
        self._scheduler = scheduler
        self._now = now
        self.changed: dict[str, TaskState] = {}
        """By task id: what goes to the state topic."""
        self.writes: list[Write] = []
        self.given_up: list[SessionGivenUp] = []
        """What is to be told to the partitions' owners after the commit."""

    def task(self, task_id: str) -> TaskState | None:
        """Return the task as this draft leaves it."""
        return self.changed.get(task_id) or self._tasks.get(task_id)

    def session(self, session_id: str) -> SessionState | None:
        """Return a session as this draft leaves it. None: not one of ours."""
        task, index = self._session(session_id)
        return None if task is None else task.sessions[index]

    def submit(self, submitted: TaskSubmitted) -> TaskState:
        """Take a task in; the same one again is the same. Raises TaskDiffers."""
        known = self.task(submitted.task_id)
        if known is not None:
            if structs.replace(known.submitted, submitted_at=submitted.submitted_at) != submitted:
                raise TaskDiffers
            return known
        group = group_of(submitted.task_id)
        sessions = tuple(SessionState(session_id=session_of(group, index)) for index in range(submitted.options.samples))
        self.writes.append(Write(Topic.TASKS, submitted.task_id, submitted))
        return self._put(TaskState(scheduler=self._scheduler, submitted=submitted, sessions=sessions))

    def cancel(self, task_id: str, reason: str) -> TaskState | None:
        """End a task that has not ended: everything unfinished is given up. None: no such task."""
        task = self.task(task_id)
        if task is None or task.outcome is not None or task.cancelled is not None:
            return task
        reason = cut(reason) or "cancelled"
        self.writes.append(Write(Topic.TASKS, task_id, TaskCancelled(task_id=task_id, reason=reason, cancelled_at=self._now)))
        self._put(structs.replace(task, cancelled=reason))
        return self._give_up_all(task_id, frozenset({Stage.QUEUED, *HELD}), End.CANCELLED, reason)

    def read(self, event: object) -> None:
        """Take an event of another service into account. What is not of our tasks, or was known, changes nothing."""
        match event:
            case SessionStarted():
                self._started(event)
            case AttemptEnded():
                self._attempt_over(event.session_id, event.attempt, HELD, event.detail or event.end)
            case SessionSealed():
                self._sealed(event)
            case GroupMerged() | GroupFailed():
                self._group_ended(event)
            case _:
                pass

    def lost(self, session_id: str, attempt: int) -> None:
        """Take into account that a lease ran out: the attempt counts as lost with its runner."""
        self._attempt_over(session_id, attempt, HELD, "its runner gave no sign of it")

    def dispatch(self, session_id: str, runner_id: str, *, lease_seconds: float, boot_id: str | None = None) -> None:
        """Hand the next attempt of a queued session to a runner: to its process of this boot id, where it is known."""
        task, index = self._session(session_id)
        if task is None or task.sessions[index].stage is not Stage.QUEUED:
            return
        session = task.sessions[index]
        first = self._now if session.first_dispatched_at is None else session.first_dispatched_at
        after = structs.replace(
            session,
            stage=Stage.DISPATCHED,
            attempt=session.attempt + 1,
            runner_id=runner_id,
            dispatched_at=self._now,
            first_dispatched_at=first,
        )
        dispatched = SessionDispatched(
            session_id=session_id,
            attempt=after.attempt,
            runner_id=runner_id,
            dispatched_at=self._now,
            lease_seconds=lease_seconds,
            boot_id=boot_id,
            spec=session_spec(task.submitted, group_of(task.submitted.task_id), index),
        )
        self.writes.append(Write(Topic.DISPATCH, runner_id, dispatched))
        self._move(task, index, after)

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
                    self._give_up(task_id, index, End.DEADLINE, f"{limit:g} seconds after its first dispatch")

    def _started(self, event: SessionStarted) -> None:
        task, index = self._session(event.session_id)
        if task is None:
            return
        session = task.sessions[index]
        expected = session.attempt == event.attempt and session.runner_id == event.runner_id
        if expected and session.stage in {Stage.DISPATCHED, Stage.QUEUED}:
            self._move(task, index, structs.replace(session, stage=Stage.RUNNING))

    def _attempt_over(self, session_id: str, attempt: int, stages: frozenset[Stage], detail: str) -> None:
        """Queue the next attempt, or give the session up where its attempts are used up."""
        task, index = self._session(session_id)
        if task is None or task.sessions[index].attempt != attempt or task.sessions[index].stage not in stages:
            return
        self._move(task, index, structs.replace(task.sessions[index], stage=Stage.QUEUED, detail=cut(detail)))
        if task.outcome is not None:
            self._give_up(task.submitted.task_id, index, End.CANCELLED, "its group had ended")
        elif attempt >= task.submitted.options.budgets.attempts:
            self._give_up(task.submitted.task_id, index, End.ATTEMPTS_USED_UP, detail)

    def _sealed(self, event: SessionSealed) -> None:
        task, index = self._session(event.session_id)
        if task is None or task.sessions[index].stage is Stage.SEALED:
            return
        session = task.sessions[index]
        if event.attempt < session.attempt and session.stage in HELD:
            self._cancel(session, f"attempt {event.attempt} was sealed")
            session = structs.replace(session, attempt=event.attempt)  # a higher one that a runner lists still takes its place
        self._move(task, index, structs.replace(session, stage=Stage.SEALED, end=event.end, detail=cut(event.detail)))
        if CONSEQUENCES[event.end].fails_task:
            self._give_up_all(task.submitted.task_id, frozenset({Stage.QUEUED}), event.end, event.detail)

    def _group_ended(self, event: GroupMerged | GroupFailed) -> None:
        task = self.task(event.task_id)
        if task is None or task.outcome is not None:
            return
        outcome, reason = how_it_ended(task, event)
        rewards = tuple(member.reward for member in event.members)
        self.writes.append(
            Write(Topic.TASKS, event.task_id, TaskEnded(task_id=event.task_id, outcome=outcome, reason=reason, ended_at=self._now))
        )
        self._put(structs.replace(task, outcome=outcome, reason=reason, ended_at=self._now, rewards=rewards, accounting=event.accounting))
        self._give_up_all(event.task_id, frozenset({Stage.QUEUED}), End.CANCELLED, "its group had ended")

    def _give_up_all(self, task_id: str, stages: frozenset[Stage], end: End, detail: str) -> TaskState | None:
        task = self.task(task_id)
        for index, session in enumerate(task.sessions if task else ()):
            if session.stage in stages:
                self._give_up(task_id, index, end, detail)
        return self.task(task_id)

    def _give_up(self, task_id: str, index: int, end: End, detail: str) -> None:
        task = self.task(task_id)
        if task is None:
            return
        session = task.sessions[index]
        self._cancel(session, detail or end)
        after = self._move(task, index, structs.replace(session, stage=Stage.GIVEN_UP, end=end, detail=cut(detail)))
        self.given_up.append(given_up(after, index, now=self._now))

    def _cancel(self, session: SessionState, reason: str) -> None:
        """Tell the runner that holds the session, if one does."""
        if session.stage in HELD and session.runner_id is not None:
            cancelled = SessionCancelled(session_id=session.session_id, runner_id=session.runner_id, reason=reason)
            self.writes.append(Write(Topic.DISPATCH, session.runner_id, cancelled))

    def _session(self, session_id: str) -> tuple[TaskState | None, int]:
        """Return the task of a session, and the session's index. None: not one of ours."""
        group_id, _, number = session_id.rpartition(".")
        task = self.task(group_id)
        if task is None or not number.isdecimal() or int(number) >= len(task.sessions):
            return None, 0
        return task, int(number)

    def _move(self, task: TaskState, index: int, after: SessionState) -> TaskState:
        before = task.sessions[index]
        if after.stage not in NEXT[before.stage]:
            msg = f"session {before.session_id}: {before.stage} does not lead to {after.stage}"
            raise AssertionError(msg)
        sessions = (*task.sessions[:index], after, *task.sessions[index + 1 :])
        return self._put(structs.replace(task, sessions=sessions))

    def _put(self, task: TaskState) -> TaskState:
        self.changed[task.submitted.task_id] = task
        return task


def how_it_ended(task: TaskState, event: GroupMerged | GroupFailed) -> tuple[TaskOutcome, str]:
    """Return the outcome of a task whose group ended, with the reason why it failed, or why sessions of it are left out."""
    if isinstance(event, GroupMerged):
        return (TaskOutcome.MERGED if event.purpose is Purpose.TRAIN else TaskOutcome.KEPT), cut(event.reason)
    if task.cancelled is not None:
        return TaskOutcome.CANCELLED, task.cancelled
    ends = [session for session in task.sessions if session.end is not None and CONSEQUENCES[session.end].fails_task]
    return TaskOutcome.FAILED, next((session.detail for session in ends if session.detail), cut(event.reason))


def given_up(task: TaskState, index: int, *, now: float) -> SessionGivenUp:
    """Return what tells the owner that a session of stage GIVEN_UP gets no further attempt."""
    session = task.sessions[index]
    return SessionGivenUp(
        session_id=session.session_id,
        attempt=session.attempt,
        end=session.end or End.CANCELLED,
        detail=session.detail,
        given_up_at=now,
        spec=session_spec(task.submitted, group_of(task.submitted.task_id), index),
    )


def is_open(task: TaskState) -> bool:
    """Return whether anything can still happen to the task."""
    return task.outcome is None or any(session.stage is not Stage.SEALED for session in task.sessions)


def may_start_at(session: SessionState) -> float:
    """Return the time from which a queued session's next attempt may be dispatched."""
    if session.dispatched_at is None:
        return 0.0
    return session.dispatched_at + min(RETRY_SECONDS * 2.0 ** (session.attempt - 1), MAX_RETRY_SECONDS)


def cut(detail: str) -> str:
    """Return as much of a reason as the state keeps."""
    return detail.encode()[:MAX_DETAIL_BYTES].decode(errors="ignore")
