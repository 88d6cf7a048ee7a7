"""What happens to tasks and sessions, decided without a clock or a log."""

from collections.abc import Iterable
from typing import Any

import pytest
from msgspec import structs
from tests.support import builders
from tests.support.builders import T0, group_ended, spec

from evener.bus.port import MAX_RECORD_BYTES
from evener.proto.codec import encode
from evener.proto.reasons import END_POLICY, TerminationReason
from evener.proto.sessions import AttemptEnded, SessionCancelled, SessionDispatched, SessionSealed, SessionStarted
from evener.proto.spec import Budgets, GraderSpec, HarnessSpec, Purpose
from evener.proto.state import SessionState, Stage, TaskState
from evener.proto.tasks import TaskCancelled, TaskEnded, TaskOptions, TaskOutcome, TaskSubmitted
from evener.proto.trajectories import GroupFailed, GroupMerged
from evener.scheduler.core import HELD, LEASE_EXPIRED, NEXT, Draft, TaskDiffers, may_start_at
from evener.scheduler.http import MAX_BODY_BYTES

OPTIONS = TaskOptions(samples=2, harness=HarnessSpec(name="script"), grader=GraderSpec(name="answer", options={"expected": "42"}))


def submitted(task_id: str = "t", **options: Any) -> TaskSubmitted:
    return TaskSubmitted(task_id=task_id, task=None, options=structs.replace(OPTIONS, **options), submitted_at=T0)


def started(session_id: str = "t.0", attempt: int = 1, runner_id: str = "r") -> SessionStarted:
    return builders.started(session_id, spec("t"), attempt=attempt, runner_id=runner_id)


def attempt_ended(attempt: int = 1, reason: TerminationReason = TerminationReason.INFRASTRUCTURE) -> AttemptEnded:
    return builders.attempt_ended("t.0", reason, attempt=attempt)


def sealed(session_id: str = "t.0", end: TerminationReason = TerminationReason.FINISHED, detail: str = "") -> SessionSealed:
    return builders.sealed(session_id, end, detail=detail)


def merged(task_id: str = "t", purpose: Purpose = Purpose.TRAIN, rewards: Iterable[float | None] = (1.0, 0.0)) -> GroupMerged | GroupFailed:
    return group_ended(task_id, rewards, purpose=purpose)


def failed() -> GroupMerged | GroupFailed:
    return group_ended("t", (1.0, 0.0), reason="too few")


class CommittedTasks:
    """Tasks after every draft that was committed."""

    def __init__(self, *tasks: TaskSubmitted) -> None:
        self.states: dict[str, TaskState] = {}
        self.now = T0
        self.written: list[object] = []
        for task in tasks:
            self.commit(self.draft_of(lambda draft, task=task: draft.submit(task)))

    def draft_of(self, *changes: Any) -> Draft:
        draft = Draft(self.states, now=self.now)
        for change in changes:
            change(draft)
        return draft

    def commit(self, draft: Draft) -> Draft:
        self.states.update(draft.changed)
        self.written += [write.event for write in draft.writes]
        return draft

    def read(self, *events: object) -> Draft:
        return self.commit(self.draft_of(*(lambda draft, event=event: draft.read(event) for event in events)))

    def dispatch(self, session_id: str = "t.0", runner_id: str = "r") -> Draft:
        return self.commit(self.draft_of(lambda draft: draft.dispatch(session_id, runner_id, lease_seconds=10)))

    def session(self, index: int = 0) -> SessionState:
        return self.states["t"].sessions[index]

    def stage(self, index: int = 0) -> Stage:
        return self.session(index).stage

    def count(self, kind: type) -> int:
        return sum(isinstance(event, kind) for event in self.written)


def tasks_at(stage: Stage, **options: Any) -> CommittedTasks:
    """Return a task whose first session was led to a stage."""
    tasks = CommittedTasks(submitted(**options))
    if stage is not Stage.QUEUED:
        tasks.dispatch()
    if stage is Stage.RUNNING:
        tasks.read(started())
    elif stage is Stage.GIVEN_UP:
        tasks.commit(tasks.draft_of(lambda draft: draft.cancel("t", "enough")))
    elif stage is Stage.SEALED:
        tasks.read(sealed())
    assert tasks.stage() is stage
    return tasks


CHANGES: dict[str, Any] = {
    "dispatch": lambda draft: draft.dispatch("t.0", "r", lease_seconds=10),
    "started": lambda draft: draft.read(started()),
    "started_elsewhere": lambda draft: draft.read(started(runner_id="other")),
    "attempt_ended": lambda draft: draft.read(attempt_ended()),
    "lost": lambda draft: draft.lost("t.0", 1),
    "sealed": lambda draft: draft.read(sealed()),
    "cancel": lambda draft: draft.cancel("t", "enough"),
    "merged": lambda draft: draft.read(merged()),
}
Q, D, R, G, S = Stage.QUEUED, Stage.DISPATCHED, Stage.RUNNING, Stage.GIVEN_UP, Stage.SEALED
TABLE: dict[str, dict[Stage, Stage]] = {
    "dispatch": {Q: D, D: D, R: R, G: G, S: S},
    "started": {Q: Q, D: R, R: R, G: G, S: S},
    "started_elsewhere": {Q: Q, D: D, R: R, G: G, S: S},
    "attempt_ended": {Q: Q, D: Q, R: Q, G: G, S: S},
    "lost": {Q: Q, D: Q, R: Q, G: G, S: S},
    "sealed": {Q: S, D: S, R: S, G: S, S: S},
    "cancel": {Q: G, D: G, R: G, G: G, S: S},
    "merged": {Q: G, D: D, R: R, G: G, S: S},
}


@pytest.mark.parametrize(("change", "stage"), [(change, stage) for change in TABLE for stage in Stage])
def test_every_change_at_every_stage_leads_where_the_table_says(change: str, stage: Stage) -> None:
    tasks = tasks_at(stage)
    tasks.commit(tasks.draft_of(CHANGES[change]))

    after = TABLE[change][stage]
    assert tasks.stage() is after
    assert after is stage or after in NEXT[stage]


def test_every_way_between_stages_ends_at_the_seal() -> None:
    """Only a seal ends a session; no stage is a trap."""
    assert {stage for stage, after in NEXT.items() if not after} == {Stage.SEALED}
    assert all(Stage.SEALED in after for stage, after in NEXT.items() if stage is not Stage.SEALED)


def test_same_task_again_is_the_same_task() -> None:
    """A client that did not hear the answer asks again, later."""
    tasks = CommittedTasks(submitted())
    again = tasks.draft_of(lambda draft: draft.submit(structs.replace(submitted(), submitted_at=T0 + 60)))

    assert not again.writes
    assert not again.changed


def test_other_task_under_a_known_id_is_refused() -> None:
    tasks = CommittedTasks(submitted())

    with pytest.raises(TaskDiffers):
        tasks.draft_of(lambda draft: draft.submit(submitted(samples=3)))


def test_dispatch_carries_the_whole_session_and_counts_attempts() -> None:
    tasks = CommittedTasks(submitted(purpose=Purpose.EVAL))
    (write,) = tasks.dispatch("t.1").writes

    assert isinstance(write.event, SessionDispatched)
    assert (write.key, write.event.session_id, write.event.attempt) == ("r", "t.1", 1)
    assert (write.event.spec.index, write.event.spec.group_size, write.event.spec.purpose) == (1, 2, Purpose.EVAL)


def test_attempt_that_ended_is_run_again_until_the_budget_is_spent() -> None:
    tasks = CommittedTasks(submitted(budgets=Budgets(attempts=2)))
    for attempt in (1, 2):
        tasks.dispatch()
        draft = tasks.read(started(attempt=attempt), attempt_ended(attempt=attempt))

    assert tasks.stage() is Stage.GIVEN_UP
    (given_up,) = draft.given_up
    assert (given_up.session_id, given_up.attempt, given_up.termination_reason) == ("t.0", 2, TerminationReason.ATTEMPTS_USED_UP)
    assert tasks.count(SessionDispatched) == 2


def test_attempt_that_its_runner_hands_back_does_not_count() -> None:
    """Runners are stopped for reasons of their own, as often as they are replaced."""
    tasks = CommittedTasks(submitted(budgets=Budgets(attempts=2)))
    handed_back = [attempt_ended(attempt, TerminationReason.STOPPED) for attempt in (1, 2, 4)]
    for attempt, end in enumerate((*handed_back[:2], attempt_ended(attempt=3), handed_back[2]), start=1):
        tasks.dispatch()
        tasks.read(started(attempt=attempt), end)
        assert tasks.stage() is Stage.QUEUED
    tasks.dispatch()
    tasks.read(started(attempt=5), attempt_ended(attempt=5))

    assert tasks.session().termination_reason is TerminationReason.ATTEMPTS_USED_UP


def test_runners_that_lost_attempts_are_remembered() -> None:
    """A runner that was stopped and handed its attempt back is none of them."""
    tasks = CommittedTasks(submitted(budgets=Budgets(attempts=9)))
    for attempt, (runner_id, end) in enumerate(
        (("a", TerminationReason.SANDBOX_LOST), ("b", TerminationReason.STOPPED), ("c", TerminationReason.SANDBOX_LOST)), start=1
    ):
        tasks.dispatch(runner_id=runner_id)
        tasks.read(attempt_ended(attempt, end))
    tasks.dispatch(runner_id="a")
    draft = tasks.commit(tasks.draft_of(lambda draft: draft.lost("t.0", 4)))

    assert tasks.session().failed_on == ("a", "c")
    assert [(end.runner_id, end.reason) for end in draft.ended] == [("a", LEASE_EXPIRED)]


def test_end_of_an_earlier_attempt_does_not_touch_the_running_one() -> None:
    """The lease ran out, the next attempt was dispatched, and only then the owner closed the first."""
    tasks = CommittedTasks(submitted())
    tasks.dispatch()
    tasks.commit(tasks.draft_of(CHANGES["lost"]))
    tasks.dispatch(runner_id="other")
    tasks.read(attempt_ended(attempt=1), started(attempt=2, runner_id="other"), started(attempt=1))

    assert (tasks.stage(), tasks.session().attempt) == (Stage.RUNNING, 2)


def test_lost_attempt_that_lives_after_all_runs_on() -> None:
    """Its SessionStarted was on the way when the lease ran out."""
    tasks = CommittedTasks(submitted())
    tasks.dispatch()
    tasks.commit(tasks.draft_of(CHANGES["lost"]))
    tasks.read(started())

    assert tasks.stage() is Stage.RUNNING


@pytest.mark.parametrize("running", [False, True])
def test_seal_of_an_earlier_attempt_ends_the_newer_one(running: bool) -> None:  # noqa: FBT001 - the two cases
    """The first was taken for lost, yet it finished: what the next one's runner does is worth nothing."""
    tasks = CommittedTasks(submitted())
    tasks.dispatch()
    tasks.commit(tasks.draft_of(CHANGES["lost"]))
    tasks.dispatch(runner_id="other")
    if running:
        tasks.read(started(attempt=2, runner_id="other"))
    (write,) = tasks.read(sealed()).writes

    assert isinstance(write.event, SessionCancelled)
    assert (write.key, write.event.session_id, write.event.runner_id) == ("other", "t.0", "other")
    assert tasks.stage() is Stage.SEALED


def test_seal_of_the_running_attempt_cancels_nothing() -> None:
    """Its harness is gone."""
    tasks = tasks_at(Stage.RUNNING)

    assert not tasks.read(sealed()).writes


def test_attempts_wait_longer_each_time() -> None:
    """An engine that is down for seconds must not eat all attempts."""
    tasks = CommittedTasks(submitted())
    waits = []
    for attempt in (1, 2):
        tasks.dispatch()
        tasks.read(attempt_ended(attempt=attempt))
        waits.append(may_start_at(tasks.session()) - T0)

    assert 0 < waits[0] < waits[1]


def test_cancel_tells_runners_and_owners() -> None:
    """A queued session is given up, a running one also ended; the task itself ends with its group."""
    tasks = CommittedTasks(submitted())
    tasks.dispatch()
    draft = tasks.commit(tasks.draft_of(CHANGES["cancel"]))

    assert [type(write.event) for write in draft.writes] == [TaskCancelled, SessionCancelled]
    assert [(event.session_id, event.attempt, event.termination_reason) for event in draft.given_up] == [
        ("t.0", 1, TerminationReason.CANCELLED),
        ("t.1", 0, TerminationReason.CANCELLED),
    ]
    assert tasks.states["t"].outcome is None


def test_second_cancel_changes_nothing() -> None:
    tasks = tasks_at(Stage.GIVEN_UP)

    assert not tasks.draft_of(CHANGES["cancel"]).writes


@pytest.mark.parametrize(
    ("event", "outcome", "reason"),
    [
        (merged(), TaskOutcome.MERGED, ""),
        (
            structs.replace(merged(), reason="left out: 1 refused (stop: not served)"),
            TaskOutcome.MERGED,
            "left out: 1 refused (stop: not served)",
        ),
        (merged(purpose=Purpose.EVAL), TaskOutcome.KEPT, ""),
        (merged(purpose=Purpose.COLLECT), TaskOutcome.KEPT, ""),
        (failed(), TaskOutcome.FAILED, "too few"),
        (structs.replace(failed(), reason="zero variance", dropped_by="zero_variance"), TaskOutcome.DROPPED, "zero variance"),
    ],
)
def test_task_ends_as_its_group_did(event: GroupMerged | GroupFailed, outcome: TaskOutcome, reason: str) -> None:
    tasks = CommittedTasks(submitted())
    tasks.read(sealed("t.0"), sealed("t.1"), event, event)

    state = tasks.states["t"]
    assert (state.outcome, state.reason, state.rewards) == (outcome, reason, (1.0, 0.0))
    assert tasks.count(TaskEnded) == 1


def test_cancelled_task_whose_group_failed_is_cancelled() -> None:
    tasks = tasks_at(Stage.GIVEN_UP)
    tasks.read(sealed("t.0", TerminationReason.CANCELLED), sealed("t.1", TerminationReason.CANCELLED), failed())

    assert (tasks.states["t"].outcome, tasks.states["t"].reason) == (TaskOutcome.CANCELLED, "enough")


def test_cancelled_task_whose_group_was_merged_before_is_merged() -> None:
    """Trainers have it: anything else would be a lie."""
    tasks = tasks_at(Stage.GIVEN_UP)
    tasks.read(merged())

    assert tasks.states["t"].outcome is TaskOutcome.MERGED


def test_end_that_no_attempt_can_mend_ends_the_whole_group() -> None:
    """The harness is not installed: what still waits is given up, and the task says why."""
    tasks = CommittedTasks(submitted(samples=3))
    tasks.dispatch("t.0")
    tasks.dispatch("t.1")
    draft = tasks.read(sealed("t.0", TerminationReason.NO_START, "pi is not installed"))

    assert [event.session_id for event in draft.given_up] == ["t.2"]
    assert tasks.stage(1) is Stage.DISPATCHED
    tasks.read(sealed("t.1", TerminationReason.NO_START, "pi is not installed"), sealed("t.2", TerminationReason.NO_START), failed())
    assert (tasks.states["t"].outcome, tasks.states["t"].reason) == (TaskOutcome.FAILED, "pi is not installed")


def test_group_that_was_delivered_early_starts_nothing_more() -> None:
    """What runs may end by itself; its attempt is not repeated."""
    tasks = CommittedTasks(submitted(samples=3))
    tasks.dispatch("t.0")
    tasks.read(merged(rewards=(None, 1.0, None)))
    assert [tasks.stage(index) for index in range(3)] == [Stage.DISPATCHED, Stage.GIVEN_UP, Stage.GIVEN_UP]

    tasks.read(attempt_ended())
    assert tasks.stage(0) is Stage.GIVEN_UP


def test_deadline_counts_from_the_first_dispatch() -> None:
    tasks = CommittedTasks(submitted(budgets=Budgets(deadline_seconds=60)))
    tasks.dispatch()
    tasks.read(attempt_ended())
    tasks.now = T0 + 30
    tasks.dispatch()
    tasks.now = T0 + 59
    assert not tasks.draft_of(lambda draft: draft.deadlines(["t"])).changed

    tasks.now = T0 + 61
    draft = tasks.commit(tasks.draft_of(lambda draft: draft.deadlines(["t"])))
    assert [(event.session_id, event.termination_reason) for event in draft.given_up] == [("t.0", TerminationReason.DEADLINE)]
    assert [type(write.event) for write in draft.writes] == [SessionCancelled]


def test_events_of_others_change_nothing() -> None:
    """Several schedulers share `sessions`."""
    tasks = CommittedTasks(submitted())
    draft = tasks.read(sealed("other.0"), sealed("t.7"), sealed("t"), sealed("t.x"), started("other.1"), merged("other"), "no event")

    assert not draft.changed
    assert not draft.writes


def test_largest_task_fits_one_record() -> None:
    """With every session given up for a long reason: a state that cannot be written would stop the scheduler for ever."""
    tasks = CommittedTasks(submitted("t" * 100, samples=1024))
    for index in range(1024):
        tasks.commit(tasks.draft_of(lambda draft, index=index: draft.dispatch(f"{'t' * 100}.{index}", "r" * 100, lease_seconds=10)))
    draft = tasks.draft_of(lambda draft: draft.cancel("t" * 100, "\N{ELEPHANT}" * 1000))

    assert len(encode(draft.changed["t" * 100])) < MAX_RECORD_BYTES - MAX_BODY_BYTES


def test_draft_that_is_not_committed_leaves_no_trace() -> None:
    tasks = CommittedTasks(submitted())
    before = dict(tasks.states)
    tasks.draft_of(CHANGES["dispatch"], CHANGES["sealed"], CHANGES["merged"])

    assert tasks.states == before


def test_every_end_has_a_place_in_the_seal() -> None:
    """Whatever a session ended with, the scheduler takes the seal."""
    for end in END_POLICY:
        tasks = CommittedTasks(submitted())
        tasks.read(sealed("t.0", end))
        assert (tasks.stage(), tasks.session().termination_reason) == (Stage.SEALED, end)
        assert tasks.stage(1) in {Stage.QUEUED, Stage.GIVEN_UP} - HELD
