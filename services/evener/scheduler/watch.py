"""Progress for watchers. Each gets the present state of what changed since its last update, so that updates never pile up."""

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Final

from evener.client.views import SessionProgress, TaskDetail, TaskView
from evener.proto.fields import shared_fields
from evener.proto.state import Stage, TaskState

QUIET_SECONDS: Final = 15.0
"""After this time without a change, a watcher is sent an empty line, which shows that the connection is alive."""

Sees = Callable[[str], bool]
"""Whether somebody sees what belongs to a team."""


def everything(_team: str) -> bool:
    """See the tasks of all teams."""
    return True


class Watch:
    """When each task changed, by a cursor that only rises, also from one process to the next."""

    def __init__(self) -> None:
        self._tasks: Mapping[str, TaskState] = {}
        self._cursors: OrderedDict[str, int] = OrderedDict()
        """The cursors by task id, the last changed task at the end."""
        self._newest = time.time_ns() // 1000
        self._news = asyncio.Event()
        self._ended = False
        self._held = ""
        self.refused: Mapping[str, str] = {}
        """Task id to the quota that keeps its sessions waiting."""

    def end(self) -> None:
        """End all streams: this scheduler sends nothing more, and watchers should ask the next one."""
        self._ended = True
        self._news.set()

    def reset(self, tasks: Mapping[str, TaskState]) -> None:
        """Watch these tasks. Call `changed` whenever one of them changes, or a task is added."""
        self._tasks = tasks
        self._cursors.clear()
        self.changed(tasks)

    def changed(self, task_ids: Iterable[str]) -> None:
        """Notify the watchers."""
        for task_id in task_ids:
            self._newest += 1
            self._cursors[task_id] = self._newest
            self._cursors.move_to_end(task_id)
        self._news.set()
        self._news = asyncio.Event()

    def hold(self, reason: str, task_ids: Iterable[str]) -> None:
        """Say of these tasks from now on why their new sessions wait. An empty reason: they do not."""
        self._held = reason
        self.changed(task_ids)

    def refuse(self, reasons: Mapping[str, str]) -> None:
        """Say from now on which tasks wait because of a quota, and of which one."""
        changed = {task_id for task_id, _ in reasons.items() ^ self.refused.items() if task_id in self._cursors}
        self.refused = dict(reasons)
        if changed:
            self.changed(changed)

    def forget(self, task_ids: Iterable[str]) -> None:
        """Drop deleted tasks."""
        for task_id in task_ids:
            self._cursors.pop(task_id, None)

    def views(self, run_id: str | None = None, *, after: int = 0, sees: Sees = everything) -> list[TaskView]:
        """Return the tasks of a run (None: of all) that changed after a cursor, in the order of their last changes.

        `sees`: of which teams.
        """
        found: list[TaskView] = []
        for task_id, cursor in reversed(self._cursors.items()):
            if cursor <= after:
                break
            state = self._tasks[task_id]
            if run_id in {None, state.submitted.options.run_id} and sees(state.submitted.team):
                found.append(self._view(task_id, cursor))
        return found[::-1]

    def detail(self, task_id: str, sees: Sees = everything) -> TaskDetail | None:
        """Return a task with its sessions. None: there is no such task of a team that is seen."""
        state = self._tasks.get(task_id)
        if state is None or not sees(state.submitted.team):
            return None
        sessions = tuple(SessionProgress(**shared_fields(session, SessionProgress)) for session in state.sessions)
        return TaskDetail(task=self._view(task_id, self._cursors[task_id]), sessions=sessions)

    async def follow(self, run_id: str | None, after: int, sees: Sees = everything) -> AsyncIterator[TaskView | None]:
        """Yield what changed after the cursor, then what changes, until the end. None: nothing changed, the connection is alive."""
        cursor = after if after <= self._newest else 0
        while True:
            news = self._news
            for changed in self.views(run_id, after=cursor, sees=sees):
                yield changed
                cursor = changed.cursor
            if self._ended:
                return
            try:
                await asyncio.wait_for(news.wait(), QUIET_SECONDS)
            except TimeoutError:
                yield None

    def _view(self, task_id: str, cursor: int) -> TaskView:
        return view(self._tasks[task_id], cursor, held=self._held, refused=self.refused.get(task_id, ""))


def view(state: TaskState, cursor: int, *, held: str, refused: str) -> TaskView:
    """Return a task as clients see it. `held`: why no new session starts. `refused`: which quota keeps its sessions waiting."""
    submitted = state.submitted
    queued = [session for session in state.sessions if session.stage is Stage.QUEUED]
    new = any(not session.attempt for session in queued)
    return TaskView(
        cursor=cursor,
        task_id=submitted.task_id,
        run_id=submitted.options.run_id,
        team=submitted.team,
        principal=submitted.principal,
        name=None if submitted.task is None else submitted.task.name,
        harness=submitted.options.harness.name,
        purpose=submitted.options.purpose,
        priority=submitted.options.priority,
        samples=submitted.options.samples,
        stages=dict(Counter(session.stage for session in state.sessions)),
        ends=dict(Counter(session.termination_reason for session in state.sessions if session.termination_reason is not None)),
        attempts=sum(session.attempt for session in state.sessions),
        held=(held if new else "") or (refused if queued else ""),
        submitted_at=submitted.submitted_at,
        **shared_fields(state, TaskView),
    )
