"""Decides which queued session goes to which runner: runs take turns, a run's tasks go in the order of submission.

A session goes to the runner with the most free slots, of those that can open its sandbox, and of those that have one of its kind warm if
there are any.

Each free slot goes to the run that holds the fewest slots for its priority: a run of priority 3 gets three times the slots of a run of
priority 1. Among equals, such as runs without a slot, it goes to the run with the longest wait since its last dispatch, times its
priority. So a long queue of one run does not keep another from starting, a run of any priority starts some day, and a scheduler that takes
over goes on in the same order: the log has all of it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from types import MappingProxyType
from typing import Final

from evener.proto.fleet import Heartbeat, Running
from evener.proto.sandbox import SandboxKind
from evener.proto.state import SessionState, Stage, TaskState
from evener.scheduler.core import Draft, may_start_at
from evener.scheduler.open_tasks import OpenTasks
from evener.scheduler.quotas import Allowance, QuotasOf, unlimited
from evener.scheduler.sandbox_kinds import kind_of, opens

ELSEWHERE_SECONDS: Final = 600.0
"""How long a further attempt waits for a slot at a runner where none was lost: the slots there may be taken for ever."""

RunningOf = Mapping[str, Collection[Running]]
"""Runner id to the attempts that the runner says that it holds."""


class FreeSlots:
    """The runners that have free slots, and how many."""

    def __init__(self, runners: Iterable[Heartbeat], running: RunningOf, open_tasks: OpenTasks, draft: Draft) -> None:
        self._runners = {runner.instance_id: runner for runner in runners}
        self._free: dict[str, int] = {}
        for runner_id, runner in self._runners.items():
            free = runner.capacity - open_tasks.held_by_runner[runner_id]
            if free > 0 and (free := free - _others(running.get(runner_id, ()), draft)) > 0:
                self._free[runner_id] = free
        self._numbers = {runner_id: number for number, runner_id in enumerate(self._runners)}
        self._most = [(-free, self._numbers[runner_id], runner_id) for runner_id, free in self._free.items()]
        """A heap of the runners with free slots, the freest first. Entries that are not true any more are skipped."""
        heapify(self._most)
        self._opening: dict[str, frozenset[str]] = {}
        """Sandbox backend to the runners that can open it."""
        self._full = set[str]()
        """Sandbox backends for which no slot is left."""
        self._warm: dict[SandboxKind, dict[str, int]] = {}
        """Kind to the runners with free slots that have such sandboxes warm, and how many."""
        for runner_id in self._free:
            for warm in self._runners[runner_id].warm:
                self._warm.setdefault(warm.kind, {})[runner_id] = warm.ready

    def any(self) -> bool:
        """Return whether a runner has a free slot."""
        return bool(self._free)

    def opens(self, backend: str) -> bool:
        """Return whether a runner can open sandboxes of a backend."""
        if backend not in self._opening:
            self._opening[backend] = frozenset(name for name, runner in self._runners.items() if opens(runner, backend))
        return bool(self._opening[backend])

    def take(self, backend: str, kind: SandboxKind | None = None, *, failed_on: Collection[str] = ()) -> Heartbeat | None:
        """Take a slot at the runner with the most free slots, of those with a warm sandbox of the kind if there are any; return the runner.

        None: there is none that can open sandboxes of the backend.

        `failed_on` are the runners that lost earlier attempts. A free slot at another runner is preferred, and waited for: a runner that
        fails at once, and therefore always has free slots, would otherwise get all attempts of all sessions.
        """
        if not self.opens(backend) or backend in self._full:
            return None
        opening = self._opening[backend]
        if failed_on and not any(self._runners[runner_id].capacity for runner_id in opening if runner_id not in failed_on):
            failed_on = ()
        if kind is not None and (warm := self._take_warm(kind, failed_on)) is not None:
            return warm
        passed: list[tuple[int, int, str]] = []
        found: Heartbeat | None = None
        while self._most and found is None:
            entry = heappop(self._most)
            runner = self._runners[entry[2]]
            if -entry[0] != self._free.get(runner.instance_id):
                continue
            if runner.instance_id in failed_on or runner.instance_id not in opening:
                passed.append(entry)
                continue
            found = runner
            self._use(entry[2])
        for entry in passed:
            heappush(self._most, entry)
        if found is None and not failed_on:
            self._full.add(backend)
        return found

    def _take_warm(self, kind: SandboxKind, failed_on: Collection[str]) -> Heartbeat | None:
        """Take a slot and a warm sandbox: what the next heartbeat will tell is taken into account until then."""
        warm = self._warm.get(kind, {})
        usable = [runner_id for runner_id, ready in warm.items() if ready and runner_id in self._free and runner_id not in failed_on]
        if not usable:
            return None
        runner_id = max(usable, key=self._free.__getitem__)
        warm[runner_id] -= 1
        self._use(runner_id)
        return self._runners[runner_id]

    def _use(self, runner_id: str) -> None:
        if free := self._free[runner_id] - 1:
            self._free[runner_id] = free
            heappush(self._most, (-free, self._numbers[runner_id], runner_id))
        else:
            del self._free[runner_id]


class Queue:
    """The waiting sessions of one run, in the order of their tasks."""

    def __init__(self, tasks: Sequence[TaskState], held: int, served_at: float, now: float, *, only_begun: bool) -> None:
        """`held`: the run's sessions that hold a slot. `served_at`: its last dispatch. Times are in Unix seconds.

        `only_begun`: sessions without an earlier attempt wait.
        """
        self._held = held
        self._now = now
        self._served_at = served_at
        self._waits_since = max(served_at, tasks[0].submitted.submitted_at)
        self._priority = max(task.submitted.options.priority for task in tasks)
        self._waiting = (
            (task, session.session_id, session.failed_on if now < _anywhere_at(session) else ())
            for task in tasks
            for session in task.sessions
            if session.stage is Stage.QUEUED and may_start_at(session) <= now and (session.attempt or not only_begun)
        )

    def turn(self) -> tuple[float, float, int, float]:
        """Return the run's place among the runs that wait for a slot: the least is next."""
        return self._held / self._priority, (self._waits_since - self._now) * self._priority, -self._priority, self._served_at

    def take(self, slots: FreeSlots, allowance: Allowance) -> tuple[str, Heartbeat] | None:
        """Take a slot for the first session that can have one; return the session with its runner. None: no session can have one."""
        for task, session_id, failed_on in self._waiting:
            if not allowance.allows(task):
                continue
            if not slots.opens(_backend(task)):
                allowance.refused[task.submitted.task_id] = f"no runner has sandboxes of `{_backend(task)}`"
                continue
            if (runner := slots.take(_backend(task), kind_of(task), failed_on=failed_on)) is not None:
                allowance.take(task)
                self._held += 1
                self._waits_since = self._served_at = self._now
                return session_id, runner
        return None


def admit(
    draft: Draft,
    open_tasks: OpenTasks,
    runners: Iterable[Heartbeat],
    *,
    now: float,
    lease_seconds: float,
    running: RunningOf = MappingProxyType({}),
    only_begun: bool = False,
    quotas: QuotasOf = unlimited,
    spent: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, str] | None:
    """Dispatch as many sessions of open tasks as possible, runs in their turns. `now` is in Unix seconds.

    `open_tasks` are as the draft leaves them, before and after. `running`: what runners say that they hold. `only_begun`: no new
    sessions, only further attempts of those that had one. `spent`: the tokens of the last hour, by whom `quotas` name. Returns the reason
    by task id where a quota or their sandbox keeps sessions from free slots. None: there are no free slots.
    """
    queued = open_tasks.queued()
    if not queued:
        return {}
    slots = FreeSlots(runners, running, open_tasks, draft)
    if not slots.any():
        return None
    allowance = Allowance(open_tasks.held_by_holder, quotas, spent)
    held, served = open_tasks.held_by_run, open_tasks.served_at
    queues = [Queue(tasks, held[run_id], served.get(run_id, 0.0), now, only_begun=only_begun) for run_id, tasks in queued.items()]
    turns = [(queue.turn(), number, queue) for number, queue in enumerate(queues)]
    heapify(turns)
    dispatched = set[str]()
    while turns and slots.any():
        _, number, queue = heappop(turns)
        if (taken := queue.take(slots, allowance)) is not None:
            session_id, runner = taken
            draft.dispatch(session_id, runner.instance_id, lease_seconds=lease_seconds, boot_id=runner.boot_id)
            dispatched.add(session_id.rpartition(".")[0])
            heappush(turns, (queue.turn(), number, queue))
    open_tasks.update(draft.changed[task_id] for task_id in dispatched)
    return allowance.refused


def _backend(task: TaskState) -> str:
    return task.submitted.options.harness.sandbox


def _anywhere_at(session: SessionState) -> float:
    """Return the time from which a queued session may go to any runner, including those that lost its attempts."""
    return may_start_at(session) + ELSEWHERE_SECONDS


def _others(running: Iterable[Running], draft: Draft) -> int:
    """Return the number of slots that others take: sessions of other schedulers, and attempts that are still ending."""
    return sum(1 for attempt in running if _is_other(attempt, draft.session(attempt.session_id)))


def _is_other(running: Running, session: SessionState | None) -> bool:
    if session is None or session.stage is Stage.GIVEN_UP:
        return True
    return session.stage is Stage.SEALED and running.attempt > session.attempt
