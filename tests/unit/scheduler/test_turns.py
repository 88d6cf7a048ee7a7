"""The queue: runs take turns by their priority, none waits for ever, and a scheduler that takes over goes on in the same order."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice

import pytest
from tests.support import builders
from tests.support.builders import T0, heartbeat

from evener.proto.sessions import SessionDispatched
from evener.proto.spec import GraderSpec, HarnessSpec
from evener.proto.state import TaskState
from evener.proto.tasks import TaskOptions, TaskSubmitted
from evener.scheduler.admission import admit
from evener.scheduler.core import Draft
from evener.scheduler.open_tasks import OpenTasks

SESSION_SECONDS = 10.0


class Deployment:
    """A scheduler with one runner, on which every session takes ten seconds."""

    def __init__(self, slots: int, *, restarts: bool = False) -> None:
        """`restarts`: another scheduler takes over before each session, which knows what is in the log."""
        self.now = T0
        self.order: list[str] = []
        """The runs of the dispatched sessions."""
        self._runner = heartbeat("sandbox_runner", "r", capacity=slots)
        self._restarts = restarts
        self._known: dict[str, TaskState] = {}
        self._open = OpenTasks()
        self._running: list[str] = []

    def submit(self, run_id: str, sessions: int, *, tasks: int = 1, priority: int = 1) -> None:
        draft = Draft(self._known, now=self.now)
        for number in range(tasks):
            options = TaskOptions(
                run_id=run_id, priority=priority, samples=sessions, harness=HarnessSpec(name="script"), grader=GraderSpec(name="none")
            )
            task_id = f"{run_id}-{len(self._known)}-{number}"
            draft.submit(TaskSubmitted(task_id=task_id, task=None, options=options, submitted_at=self.now))
        self._commit(draft)

    def serve(self, sessions: int) -> list[str]:
        """Let the oldest session end and give its slot away, so many times; return the runs that got the slots."""
        before = len(self.order)
        self._admit()
        while len(self.order) - before < sessions and self._running:
            self.now += SESSION_SECONDS
            self._end(self._running.pop(0))
            self._admit()
        return self.order[before:][:sessions]

    def _end(self, session_id: str) -> None:
        draft = Draft(self._known, now=self.now)
        draft.read(builders.sealed(session_id, at=self.now))
        task = draft.task(session_id.rpartition(".")[0])
        assert task is not None
        if all(session.sealed_at is not None for session in task.sessions):
            draft.read(builders.group_ended(task.submitted.task_id, [1.0] * len(task.sessions)))
        self._commit(draft)

    def _admit(self) -> None:
        draft = Draft(self._known, now=self.now)
        admit(draft, self._open, [self._runner], now=self.now, lease_seconds=10)
        events = [write.event for write in draft.writes if isinstance(write.event, SessionDispatched)]
        self._running += [event.session_id for event in events]
        self.order += [event.spec.run_id for event in events]
        self._commit(draft)

    def _commit(self, draft: Draft) -> None:
        self._known.update(draft.changed)
        if self._restarts:
            states = sorted(self._known.values(), key=lambda state: (state.submitted.submitted_at, state.submitted.task_id))
            self._open = OpenTasks(states)
        else:
            self._open.update(draft.changed.values())


@pytest.mark.parametrize("slots", [1, 4])
def test_short_run_does_not_wait_for_the_end_of_a_long_one(slots: int) -> None:
    """It came later, and its two sessions are among the next that start, also where there is a single slot."""
    at = Deployment(slots)
    at.submit("long", 8, tasks=20)
    at.serve(slots + 3)
    at.submit("short", 2)

    assert Counter(at.serve(4))["short"] == 2


def test_runs_take_turns_at_a_single_slot() -> None:
    """Each holds none whenever it is free: the one that waited longest is next."""
    at = Deployment(1)
    at.submit("a", 10)
    at.submit("b", 10)
    at.submit("c", 10)

    assert at.serve(6) == ["a", "b", "c", "a", "b", "c"]


def test_slots_are_shared_by_priority() -> None:
    """Eight slots, priorities 3 and 1: six and two."""
    at = Deployment(8)
    at.submit("low", 100)
    at.submit("high", 100, priority=3)

    assert Counter(at.serve(8)) == {"high": 6, "low": 2}
    assert Counter(at.serve(80)) == {"high": 60, "low": 20}


def test_turns_at_a_single_slot_follow_priority_too() -> None:
    """Three for one, and none is passed over."""
    at = Deployment(1)
    at.submit("low", 100)
    at.submit("high", 100, priority=3)

    served = at.serve(41)

    assert served[0] == "high"
    assert {served[first : first + 4].count("low") for first in range(1, 38)} == {1}


def test_run_of_low_priority_starts_however_many_short_runs_come() -> None:
    """A new run of the highest priority comes for each session that ends, for as long as it takes."""
    at = Deployment(1)
    at.submit("first", 1, priority=100)
    at.submit("low", 1)

    def served() -> Iterator[str]:
        for number in range(1000):
            at.submit(f"new-{number}", 1, priority=100)
            yield from at.serve(1)

    assert "low" in set(islice(served(), 300))


def test_run_that_had_nothing_to_run_has_no_claim_on_the_time_before() -> None:
    """It waits from its submission on."""
    at = Deployment(1)
    at.submit("idle", 1)
    at.submit("busy", 100)
    at.serve(50)
    at.submit("idle", 10)

    assert Counter(at.serve(10)) == {"busy": 5, "idle": 5}


@pytest.mark.parametrize("slots", [1, 3])
def test_scheduler_that_takes_over_goes_on_in_the_same_order(slots: int) -> None:
    """At every session another one, which has nothing but the log: whose turn it is follows from the states."""
    orders = []
    for restarts in (False, True):
        at = Deployment(slots, restarts=restarts)
        at.submit("a", 4, tasks=6)
        at.submit("b", 1, tasks=9, priority=2)
        at.serve(9)
        at.submit("c", 2, tasks=3, priority=3)
        at.serve(100)
        orders.append(at.order)

    assert orders[0] == orders[1]
    assert Counter(orders[0]) == {"a": 24, "b": 9, "c": 6}
