"""Events in any order, repeated, with take-overs between: the promises of the scheduler hold."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.support import builders

from evener.proto.codec import decode, encode
from evener.proto.reasons import TerminationReason
from evener.proto.sessions import SessionDispatched
from evener.proto.spec import Budgets, GraderSpec, HarnessSpec
from evener.proto.state import Stage, TaskState
from evener.proto.tasks import TaskCancelled, TaskEnded, TaskOptions, TaskSubmitted, session_spec
from evener.proto.trajectories import GroupFailed, GroupMerged
from evener.scheduler.core import Draft, is_open

SAMPLES, ATTEMPTS = 3, 2
TASK = TaskSubmitted(
    task_id="t",
    task=None,
    options=TaskOptions(
        samples=SAMPLES,
        harness=HarnessSpec(name="script"),
        grader=GraderSpec(name="none"),
        budgets=Budgets(attempts=ATTEMPTS, deadline_seconds=50),
    ),
    submitted_at=0,
)
Change = Callable[[Draft], object]
sessions = st.sampled_from([f"t.{index}" for index in range(SAMPLES)])
attempts = st.integers(1, ATTEMPTS + 1)


def read(event: object) -> Change:
    return lambda draft: draft.read(event)


def started(session_id: str, attempt: int, runner_id: str) -> Change:
    return read(builders.started(session_id, session_spec(TASK, "t", 0), attempt=attempt, runner_id=runner_id))


def attempt_ended(session_id: str, attempt: int) -> Change:
    return read(builders.attempt_ended(session_id, TerminationReason.STOPPED, attempt=attempt))


def sealed(session_id: str, end: TerminationReason) -> Change:
    return read(builders.sealed(session_id, end))


def ended(*, merged: bool) -> GroupMerged | GroupFailed:
    return builders.group_ended("t", [0.0] * SAMPLES, reason=None if merged else "too few")


runners = st.sampled_from(["r1", "r2"])
changes: st.SearchStrategy[Change] = st.one_of(
    st.builds(lambda session, runner: lambda draft: draft.dispatch(session, runner, lease_seconds=10), sessions, runners),
    st.builds(started, sessions, attempts, runners),
    st.builds(attempt_ended, sessions, attempts),
    st.builds(lambda session, attempt: lambda draft: draft.lost(session, attempt), sessions, attempts),
    st.builds(sealed, sessions, st.sampled_from(TerminationReason)),
    st.just(lambda draft: draft.cancel("t", "enough")),
    st.just(lambda draft: draft.deadlines(["t"])),
    st.just(lambda draft: draft.submit(TASK)),
)
"""What may happen at any time, told by the world or by the scheduler's own clock."""


class Scheduler:
    """Drafts that are committed, or lost with their process and folded again by the next one."""

    def __init__(self) -> None:
        self.tasks: dict[str, TaskState] = {}
        self.written: list[object] = []
        self.now = 0.0

    def commit(self, batch: list[Change], *, dies: bool) -> None:
        self.now += 1
        for attempt in range(2 if dies else 1):
            draft = Draft(self.tasks, now=self.now)
            for change in batch:
                change(draft)
            if dies and attempt == 0:
                self.take_over()
                continue
            self.tasks.update(draft.changed)
            self.written += [write.event for write in draft.writes]

    def take_over(self) -> None:
        """Know only what the log says."""
        states = [decode(encode(state)) for state in self.tasks.values()]
        self.tasks = {state.submitted.task_id: state for state in states if isinstance(state, TaskState)}

    def events(self, kind: type) -> list[Any]:
        return [event for event in self.written if isinstance(event, kind)]


@given(
    before=st.lists(st.tuples(st.lists(changes, min_size=1, max_size=4), st.booleans())),
    after=st.lists(st.tuples(st.lists(changes, min_size=1, max_size=4), st.booleans())),
    merged=st.booleans(),
)
def test_every_task_has_one_end_and_no_session_more_attempts_than_its_budget(
    before: list[tuple[list[Change], bool]], after: list[tuple[list[Change], bool]], *, merged: bool
) -> None:
    """The group may end at any time, early or late, and be told twice; in the end every session is sealed."""
    scheduler = Scheduler()
    scheduler.commit([lambda draft: draft.submit(TASK)], dies=True)
    for batch, dies in before:
        scheduler.commit(batch, dies=dies)
    for batch, dies in [([read(ended(merged=merged))], True), *after, ([read(ended(merged=not merged))], False)]:
        scheduler.commit(batch, dies=dies)
    assert scheduler.tasks["t"].outcome is not None
    scheduler.commit([sealed(f"t.{index}", TerminationReason.FINISHED) for index in range(SAMPLES)], dies=True)

    dispatched = [(event.session_id, event.attempt) for event in scheduler.events(SessionDispatched)]
    assert len(scheduler.events(TaskSubmitted)) == 1
    assert len(scheduler.events(TaskEnded)) == 1
    assert len(scheduler.events(TaskCancelled)) <= 1
    assert len(set(dispatched)) == len(dispatched)
    assert all(attempt <= ATTEMPTS for _, attempt in dispatched)
    assert all(count <= ATTEMPTS for count in Counter(session_id for session_id, _ in dispatched).values())
    assert {session.stage for session in scheduler.tasks["t"].sessions} == {Stage.SEALED}
    assert not is_open(scheduler.tasks["t"])
