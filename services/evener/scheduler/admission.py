"""Which queued session goes to which runner: runs by turns, a run's tasks in the order of their submission, runners by free places.

Each free place goes to the run that holds the fewest, among equals to the one that came first. So a long queue of one run does not keep
another from starting.
"""

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from evener.proto.fleet import Heartbeat, Running
from evener.proto.state import SessionState, Stage, TaskState
from evener.scheduler.core import HELD, Draft, may_start_at

ELSEWHERE_SECONDS: Final = 600.0
"""So long a further attempt waits for a place at another runner than the last one's; what holds that one's places may take for ever."""


class Slots:
    """The free places of all runners."""

    def __init__(self, runners: Iterable[Heartbeat], draft: Draft, tasks: Iterable[TaskState]) -> None:
        """`tasks` are those with sessions that runners may hold."""
        self._runners = {runner.instance_id: runner for runner in runners}
        self._free = {runner_id: runner.capacity - _others(runner, draft) for runner_id, runner in self._runners.items()}
        for session in (session for task in tasks for session in task.sessions):
            if session.stage in HELD and session.runner_id in self._free:
                self._free[session.runner_id] -= 1

    def any(self) -> bool:
        """Return whether some runner has a free place."""
        return any(free > 0 for free in self._free.values())

    def take(self, harness: str, *, after: str | None = None) -> Heartbeat | None:
        """Return the runner with the most free places that can run the harness, one place fewer. None: there is none.

        `after` is the runner of the attempt before, if any: another one is waited for where there is one, or a runner that fails at
        once, and so is always free, would get all the attempts of all sessions.
        """
        able = [runner for runner in self._runners.values() if not runner.harnesses or harness in runner.harnesses]
        others = [runner for runner in able if runner.instance_id != after and runner.capacity]
        runner = max(others or able, key=lambda runner: self._free[runner.instance_id], default=None)
        if runner is None or self._free[runner.instance_id] <= 0:
            return None
        self._free[runner.instance_id] -= 1
        return runner


class Queue:
    """The sessions of one run that wait, in the order of their tasks."""

    def __init__(self, tasks: Sequence[TaskState], now: float) -> None:
        """`now` is in Unix seconds."""
        self.held = sum(session.stage in HELD for task in tasks for session in task.sessions)
        """Sessions of the run that have a runner's place."""
        self._waiting = (
            (task.submitted.options.harness.name, session.session_id, session.runner_id if now < _anywhere_at(session) else None)
            for task in tasks
            for session in task.sessions
            if session.stage is Stage.QUEUED and may_start_at(session) <= now
        )

    def take(self, slots: Slots) -> tuple[str, Heartbeat] | None:
        """Take a place for the first session for which there is one; return it with its runner. None: there is none for any."""
        for harness, session_id, after in self._waiting:
            if (runner := slots.take(harness, after=after)) is not None:
                self.held += 1
                return session_id, runner
        return None


def admit(draft: Draft, task_ids: Iterable[str], runners: Iterable[Heartbeat], *, now: float, lease_seconds: float) -> None:
    """Dispatch what can be dispatched of these tasks: each free place to the run that holds the fewest. `now` is in Unix seconds."""
    tasks = [task for task_id in task_ids if (task := draft.task(task_id)) is not None]
    slots = Slots(runners, draft, tasks)
    if not slots.any():
        return
    runs: dict[str, list[TaskState]] = {}
    for task in tasks:
        runs.setdefault(task.submitted.options.run_id, []).append(task)
    turns = [(queue.held, number, queue) for number, queue in enumerate(Queue(of_run, now) for of_run in runs.values())]
    heapify(turns)
    while turns and slots.any():
        _, number, queue = heappop(turns)
        if (taken := queue.take(slots)) is not None:
            session_id, runner = taken
            draft.dispatch(session_id, runner.instance_id, lease_seconds=lease_seconds, boot_id=runner.boot_id)
            heappush(turns, (queue.held, number, queue))


def _anywhere_at(session: SessionState) -> float:
    """Return from when on a queued session goes to any runner, the one of the attempt before included."""
    return may_start_at(session) + ELSEWHERE_SECONDS


def _others(runner: Heartbeat, draft: Draft) -> int:
    """Return how many places are taken by what is not held for us: other schedulers' sessions, and attempts that still die."""
    return sum(1 for running in runner.running if _is_other(running, draft.session(running.session_id)))


def _is_other(running: Running, session: SessionState | None) -> bool:
    if session is None or session.stage is Stage.GIVEN_UP:
        return True
    return session.stage is Stage.SEALED and running.attempt > session.attempt
