"""Decides which queued session goes to which runner: runs take turns, a run's tasks go in the order of submission, runners by free places.

Each free place goes to the run that holds the fewest places; among equals, to the run that came first. So a long queue of one run does not
keep another from starting.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from types import MappingProxyType
from typing import Final

from evener.proto.fleet import Heartbeat, Running
from evener.proto.state import SessionState, Stage, TaskState
from evener.scheduler.core import HELD, Draft, may_start_at
from evener.scheduler.quotas import Allowance, QuotasOf, unlimited

ELSEWHERE_SECONDS: Final = 600.0
"""How long a further attempt waits for a place at a runner where none was lost: the places there may be taken for ever."""


class RunnerCapacity:
    """The free places of all runners."""

    def __init__(self, runners: Iterable[Heartbeat], draft: Draft, tasks: Iterable[TaskState]) -> None:
        """`tasks` are those whose sessions runners may hold."""
        self._runners = {runner.instance_id: runner for runner in runners}
        self._free = {runner_id: runner.capacity - _others(runner, draft) for runner_id, runner in self._runners.items()}
        for session in (session for task in tasks for session in task.sessions):
            if session.stage in HELD and session.runner_id in self._free:
                self._free[session.runner_id] -= 1

    def any(self) -> bool:
        """Return whether a runner has a free place."""
        return any(free > 0 for free in self._free.values())

    def take(self, harness: str, *, failed_on: Collection[str] = ()) -> Heartbeat | None:
        """Take a place at the runner with the most free places that can run the harness; return the runner. None: there is none.

        `failed_on` are the runners that lost earlier attempts. A free place at another runner is preferred, and waited for: a runner that
        fails at once, and therefore always has free places, would otherwise get all attempts of all sessions.
        """
        able = [runner for runner in self._runners.values() if not runner.harnesses or harness in runner.harnesses]
        others = [runner for runner in able if runner.instance_id not in failed_on and runner.capacity]
        runner = max(others or able, key=lambda runner: self._free[runner.instance_id], default=None)
        if runner is None or self._free[runner.instance_id] <= 0:
            return None
        self._free[runner.instance_id] -= 1
        return runner


class Queue:
    """The waiting sessions of one run, in the order of their tasks."""

    def __init__(self, tasks: Sequence[TaskState], now: float, *, only_begun: bool) -> None:
        """`now` is in Unix seconds. `only_begun`: sessions without an earlier attempt wait."""
        self.held = sum(session.stage in HELD for task in tasks for session in task.sessions)
        """The number of the run's sessions that hold a place."""
        self._waiting = (
            (task, session.session_id, session.failed_on if now < _anywhere_at(session) else ())
            for task in tasks
            for session in task.sessions
            if session.stage is Stage.QUEUED and may_start_at(session) <= now and (session.attempt or not only_begun)
        )

    def take(self, slots: RunnerCapacity, allowance: Allowance) -> tuple[str, Heartbeat] | None:
        """Take a place for the first session that can have one; return the session with its runner. None: no session can have one."""
        for task, session_id, failed_on in self._waiting:
            if not allowance.allows(task):
                continue
            if (runner := slots.take(task.submitted.options.harness.name, failed_on=failed_on)) is not None:
                allowance.take(task)
                self.held += 1
                return session_id, runner
        return None


def admit(
    draft: Draft,
    task_ids: Iterable[str],
    runners: Iterable[Heartbeat],
    *,
    now: float,
    lease_seconds: float,
    only_begun: bool = False,
    quotas: QuotasOf = unlimited,
    spent: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, str] | None:
    """Dispatch as many sessions of these tasks as possible. Each free place goes to the run with the fewest. `now` is in Unix seconds.

    `only_begun`: no new sessions, only further attempts of those that had one. `spent`: the tokens of the last hour, by whom `quotas` name.
    Returns the reason by task id where a quota keeps sessions from free places. None: there are no free places.
    """
    tasks = [task for task_id in task_ids if (task := draft.task(task_id)) is not None]
    slots = RunnerCapacity(runners, draft, tasks)
    if not slots.any():
        return None
    allowance = Allowance(tasks, quotas, spent)
    runs: dict[str, list[TaskState]] = {}
    for task in tasks:
        runs.setdefault(task.submitted.options.run_id, []).append(task)
    turns = [
        (queue.held, number, queue) for number, queue in enumerate(Queue(of_run, now, only_begun=only_begun) for of_run in runs.values())
    ]
    heapify(turns)
    while turns and slots.any():
        _, number, queue = heappop(turns)
        if (taken := queue.take(slots, allowance)) is not None:
            session_id, runner = taken
            draft.dispatch(session_id, runner.instance_id, lease_seconds=lease_seconds, boot_id=runner.boot_id)
            heappush(turns, (queue.held, number, queue))
    return allowance.refused


def _anywhere_at(session: SessionState) -> float:
    """Return the time from which a queued session may go to any runner, including those that lost its attempts."""
    return may_start_at(session) + ELSEWHERE_SECONDS


def _others(runner: Heartbeat, draft: Draft) -> int:
    """Return the number of places that others take: sessions of other schedulers, and attempts that are still ending."""
    return sum(1 for running in runner.running if _is_other(running, draft.session(running.session_id)))


def _is_other(running: Running, session: SessionState | None) -> bool:
    if session is None or session.stage is Stage.GIVEN_UP:
        return True
    return session.stage is Stage.SEALED and running.attempt > session.attempt
