"""Leases and admission: who is alive, who holds what, and what goes where."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.support.builders import attempt_ended, heartbeat, sealed

from evener.proto.fleet import EngineDraining, EngineJoined, EngineLeft, Heartbeat, Running
from evener.proto.reasons import TerminationReason
from evener.proto.sessions import SessionDispatched
from evener.proto.spec import GraderSpec, HarnessSpec
from evener.proto.state import TaskState
from evener.proto.tasks import TaskOptions, TaskSubmitted
from evener.scheduler.admission import ELSEWHERE_SECONDS, RunningOf, admit
from evener.scheduler.core import Draft
from evener.scheduler.fleet import Fleet, Leases
from evener.scheduler.open_tasks import OpenTasks

NOTHING: RunningOf = {}
FOREIGN = Running(session_id="of-another-scheduler.0", attempt=1)
A, B = Running(session_id="t.0", attempt=1), Running(session_id="t.1", attempt=1)


def runner(instance_id: str = "r", capacity: int = 2, **given: Any) -> Heartbeat:
    return heartbeat("sandbox_runner", instance_id, at=0, capacity=capacity, **given)


def tasks(*, of: dict[str, str] | None = None, **sizes: int) -> dict[str, TaskState]:
    """Return tasks by name with so many samples; one named after a harness wants that one. `of`: the runs of some."""
    draft = Draft({}, now=0)
    for task_id, samples in sizes.items():
        harness = HarnessSpec(name="pi" if task_id == "pi" else "script")
        run_id = (of or {}).get(task_id, "default")
        options = TaskOptions(run_id=run_id, harness=harness, grader=GraderSpec(name="none"), samples=samples)
        draft.submit(TaskSubmitted(task_id=task_id, task=None, options=options, submitted_at=0))
    return draft.changed


def dispatched(known: dict[str, TaskState], *runners: Heartbeat, now: float = 1.0, running: RunningOf = NOTHING) -> list[tuple[str, str]]:
    """Admit, commit, and return which session went to which runner. `running`: what runners say that they hold."""
    draft = Draft(known, now=now)
    admit(draft, OpenTasks(known.values()), runners, now=now, lease_seconds=10, running=running)
    known.update(draft.changed)
    events = [write.event for write in draft.writes]
    return [(event.session_id, event.runner_id) for event in events if isinstance(event, SessionDispatched)]


def again(known: dict[str, TaskState], session_id: str, *, attempt: int = 1) -> None:
    """End an attempt so that the next one is due."""
    draft = Draft(known, now=1.0)
    draft.read(attempt_ended(session_id, TerminationReason.SANDBOX_LOST, attempt=attempt, at=1.0))
    known.update(draft.changed)


def test_further_attempt_waits_for_another_runner_than_the_one_that_failed() -> None:
    """A runner that fails at once is always free, and would use up the attempts of every session."""
    known = tasks(t=2)
    assert dispatched(known, runner("hole"), now=1.0) == [("t.0", "hole"), ("t.1", "hole")]
    again(known, "t.0")
    again(known, "t.1")
    full = runner("good", capacity=1)
    assert dispatched(known, runner("hole"), full, now=10.0, running={"good": [FOREIGN]}) == []
    assert dispatched(known, runner("hole"), runner("good", capacity=1), now=10.0) == [("t.0", "good")]
    assert dispatched(known, runner("hole"), now=10.0) == [("t.1", "hole")]  # there is no other


def test_further_attempt_goes_to_none_of_the_runners_that_lost_one() -> None:
    """Two that fail at once would otherwise pass a session to and fro until its attempts are used up."""
    known = tasks(t=1)
    assert dispatched(known, runner("one"), now=1.0) == [("t.0", "one")]
    again(known, "t.0")
    assert dispatched(known, runner("one"), runner("two"), now=10.0) == [("t.0", "two")]
    again(known, "t.0", attempt=2)
    full = runner("three", capacity=1)
    assert dispatched(known, runner("one", 8), runner("two", 8), full, now=20.0, running={"three": [FOREIGN]}) == []
    assert dispatched(known, runner("one", 8), runner("two", 8), runner("three"), now=20.0) == [("t.0", "three")]


def test_further_attempt_does_not_wait_for_ever_for_another_runner() -> None:
    """A recording may hold that one's only place for days."""
    known = tasks(t=1)
    assert dispatched(known, runner("r"), now=1.0) == [("t.0", "r")]
    again(known, "t.0")
    full, taken = runner("busy", capacity=1), {"busy": [FOREIGN]}
    assert dispatched(known, runner("r"), full, now=ELSEWHERE_SECONDS, running=taken) == []
    assert dispatched(known, runner("r"), full, now=ELSEWHERE_SECONDS + 2.0, running=taken) == [("t.0", "r")]


def test_runner_without_a_usable_store_is_no_other_runner() -> None:
    """It has no capacity, so nobody waits for it."""
    known = tasks(t=1)
    assert dispatched(known, runner("r"), now=1.0) == [("t.0", "r")]
    again(known, "t.0")
    assert dispatched(known, runner("r"), runner("storeless", capacity=0), now=10.0) == [("t.0", "r")]


def test_dispatch_names_the_process_that_it_is_for() -> None:
    known = tasks(t=1)
    draft = Draft(known, now=1.0)
    admit(draft, OpenTasks(known.values()), [runner("r")], now=1.0, lease_seconds=10)
    assert [write.event.boot_id for write in draft.writes if isinstance(write.event, SessionDispatched)] == ["b"]


def test_attempt_without_a_sign_for_a_lease_is_lost() -> None:
    leases = Leases(seconds=10, began_at=0)
    leases.sign([A, B], now=1)
    leases.sign([A], now=8)

    assert leases.expired([A, B], now=11) == []
    assert leases.expired([A, B], now=12) == [B]
    assert leases.expired([A], now=19) == [A]


def test_nothing_expires_within_a_lease_of_a_take_over() -> None:
    """The new scheduler has not heard anybody yet."""
    leases = Leases(seconds=10, began_at=100)

    assert leases.expired([A], now=110) == []
    assert leases.expired([A], now=111) == [A]


def test_time_asleep_counts_for_no_lease() -> None:
    """The process was stopped for a minute: so may everybody else have been."""
    leases = Leases(seconds=10, began_at=0)
    leases.sign([A], now=5)
    leases.slept(60)

    assert leases.expired([A], now=74) == []
    assert leases.expired([A], now=76) == [A]


@given(st.lists(st.tuples(st.sampled_from(["sign", "sleep", "wait"]), st.floats(0.1, 30))))
def test_lease_never_ends_before_its_length_awake(steps: list[tuple[str, float]]) -> None:
    """Whatever the order of signs, sleeps and waits."""
    leases, now, awake = Leases(seconds=10, began_at=0), 0.0, 0.0
    for step, seconds in steps:
        if step == "sign":
            leases.sign([A], now=now)
            awake = 0.0
        else:
            now += seconds
            if step == "sleep":
                leases.slept(seconds)
            else:
                awake += seconds
        if awake < 9.99:
            assert leases.expired([A], now=now) == []
        elif awake > 10.01:
            assert leases.expired([A], now=now) == [A]


def test_runner_is_alive_while_it_was_heard_within_a_lease() -> None:
    """An old heartbeat found at the start says nothing; a stopping runner takes nothing."""
    fleet = Fleet(lease_seconds=10)
    fleet.read(runner("old"), now=None)
    fleet.read(runner("fresh"), now=5)
    fleet.read(runner("stopping", stopping=True), now=5)
    fleet.read(heartbeat("provider_gateway", "gateway", at=0), now=5)

    assert [heartbeat.instance_id for heartbeat in fleet.runners(now=14)] == ["fresh"]
    assert fleet.runners(now=16) == []


def test_engines_join_drain_and_leave() -> None:
    fleet = Fleet(lease_seconds=10)
    fleet.read(EngineJoined(engine_id="e", kind="vllm", url="http://x", joined_at=0), now=0)
    fleet.read(EngineDraining(engine_id="e", draining_at=0), now=0)
    assert isinstance(fleet.engines["e"], EngineDraining)

    fleet.read(EngineLeft(engine_id="e", left_at=0), now=0)
    assert fleet.engines == {}


def test_sessions_are_spread_over_runners_by_free_slots() -> None:
    assert dispatched(tasks(t=4), runner("a", 1), runner("b", 3)) == [("t.0", "b"), ("t.1", "b"), ("t.2", "a"), ("t.3", "b")]


def test_tasks_go_first_in_first_out_and_no_runner_gets_too_much() -> None:
    known = tasks(t=2, u=2)

    assert [session for session, _ in dispatched(known, runner(capacity=3))] == ["t.0", "t.1", "u.0"]
    assert dispatched(known, runner(capacity=3)) == []


def test_slots_of_other_schedulers_are_not_free() -> None:
    assert len(dispatched(tasks(t=3), runner(capacity=2), running={"r": [FOREIGN]})) == 1


def test_given_up_session_takes_its_place_until_its_runner_lets_it_go() -> None:
    """Its harness is still being ended; a sealed one has none, whatever its runner said before."""
    known = tasks(t=1, u=1)
    dispatched(known, runner(capacity=1))
    draft = Draft(known, now=1)
    draft.cancel("t", "enough")
    known.update(draft.changed)
    assert dispatched(known, runner(capacity=1), running={"r": [A]}) == []

    draft = Draft(known, now=1)
    draft.read(sealed("t.0", TerminationReason.CANCELLED))
    known.update(draft.changed)
    assert dispatched(known, runner(capacity=1), running={"r": [A]}) == [("u.0", "r")]


def test_attempt_above_the_sealed_one_takes_its_place_until_its_runner_lets_it_go() -> None:
    """Its harness is still being ended."""
    known = tasks(t=1, u=1)
    dispatched(known, runner(capacity=1))
    draft = Draft(known, now=2)
    draft.lost("t.0", 1)
    draft.dispatch("t.0", "r", lease_seconds=10)
    draft.read(sealed("t.0"))
    known.update(draft.changed)

    assert dispatched(known, runner(capacity=1), running={"r": [Running(session_id="t.0", attempt=2)]}) == []
    assert dispatched(known, runner(capacity=1)) == [("u.0", "r")]


def test_next_attempt_waits_its_pause() -> None:
    known = tasks(t=1)
    dispatched(known, runner(), now=1.0)
    draft = Draft(known, now=1.1)
    draft.lost("t.0", 1)
    known.update(draft.changed)

    assert dispatched(known, runner(), now=1.2) == []
    assert dispatched(known, runner(), now=1.6) == [("t.0", "r")]


def test_a_run_that_comes_later_gets_its_first_session_at_the_next_free_place() -> None:
    """A long queue of one run does not hold up another's start; then both share the places evenly."""
    known = tasks(of={"first": "early", "second": "early", "late": "late"}, first=8, second=8)
    assert len(dispatched(known, runner(capacity=4))) == 4
    known |= tasks(of={"late": "late"}, late=8)
    assert dispatched(known, runner(capacity=5)) == [("late.0", "r")]

    draft = Draft(known, now=1)
    for index in range(4):
        draft.read(sealed(f"first.{index}"))
    known.update(draft.changed)
    assert [name for name, _ in dispatched(known, runner(capacity=6))] == ["first.4", "first.5", "late.1", "first.6", "late.2"]
