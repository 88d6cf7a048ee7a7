"""The index of open tasks: whatever changes in whatever order, it is what a look at all of them would find."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from evener.proto.fleet import Running
from evener.proto.spec import GraderSpec, HarnessSpec
from evener.proto.state import SessionState, Stage, TaskState
from evener.proto.tasks import TaskOptions, TaskOutcome, TaskSubmitted
from evener.scheduler.core import HELD, is_open
from evener.scheduler.open_tasks import OpenTasks

SAMPLES = 3
NAMES = ("a", "b", "c", "d")
RUNS = {"a": "one", "b": "two", "c": "one", "d": "three"}
Change = tuple[str, TaskState | None]


def task(name: str, stages: list[Stage], runners: list[str], *, ended: bool) -> TaskState:
    options = TaskOptions(run_id=RUNS[name], samples=SAMPLES, harness=HarnessSpec(name="script"), grader=GraderSpec(name="none"))
    submitted = TaskSubmitted(task_id=name, task=None, options=options, principal=f"p-{name}", team=f"t-{RUNS[name]}", submitted_at=0)
    sessions = tuple(
        SessionState(session_id=f"{name}.{index}", stage=stage, attempt=1, runner_id=runner)
        for index, (stage, runner) in enumerate(zip(stages, runners, strict=True))
    )
    state = TaskState(submitted=submitted, sessions=sessions)
    return structs.replace(state, outcome=TaskOutcome.MERGED) if ended else state


def states(name: str) -> st.SearchStrategy[TaskState]:
    stages = st.lists(st.sampled_from(Stage), min_size=SAMPLES, max_size=SAMPLES)
    runners = st.lists(st.sampled_from(["r1", "r2"]), min_size=SAMPLES, max_size=SAMPLES)
    return st.builds(lambda *given, ended: task(name, *given, ended=ended), stages, runners, ended=st.booleans())


changes: st.SearchStrategy[list[Change]] = st.lists(
    st.sampled_from(NAMES).flatmap(lambda name: st.tuples(st.just(name), st.none() | states(name))), max_size=20
)


@given(changes)
def test_index_is_what_a_look_at_all_tasks_finds(changed: list[Change]) -> None:
    """Tasks come, change, close and are deleted; None deletes."""
    index, known = OpenTasks(), dict[str, TaskState]()
    for name, state in changed:
        if state is None or not is_open(state):
            known.pop(name, None)
        else:
            known[name] = state
        if state is None:
            index.drop(name)
        else:
            index.update([state])

    held = [(task, session) for task in known.values() for session in task.sessions if session.stage in HELD]
    waiting = {name: task for name, task in known.items() if any(session.stage is Stage.QUEUED for session in task.sessions)}
    assert set(index) == set(known)
    assert index.held_by_runner == Counter(session.runner_id for _, session in held)
    assert index.held_by_run == Counter(task.submitted.options.run_id for task, _ in held)
    assert index.held_by_team == Counter(task.submitted.team for task, _ in held)
    assert index.held_by_holder == Counter(
        holder for task, _ in held for holder in (f"principal {task.submitted.principal}", f"team {task.submitted.team}")
    )
    assert set(index.held()) == {Running(session_id=session.session_id, attempt=1) for _, session in held}
    assert index.waiting_by_team == Counter(
        task.submitted.team for task in waiting.values() for session in task.sessions if session.stage is Stage.QUEUED
    )
    assert index.queued() == {
        run_id: [task for task in waiting.values() if task.submitted.options.run_id == run_id]
        for run_id in dict.fromkeys(task.submitted.options.run_id for task in known.values())
        if any(task.submitted.options.run_id == run_id for task in waiting.values())
    }


def test_last_dispatch_of_a_run_is_known_until_the_run_is_deleted() -> None:
    """Also once all its tasks are closed: whose turn it is depends on it. What else of the run is open keeps it."""
    index = OpenTasks([dispatched("a", 7.0, ended=True), dispatched("c", 5.0, ended=False), dispatched("b", 6.0, ended=True)])
    assert index.served_at == {"one": 7.0, "two": 6.0}

    index.forget("a", "one")
    index.forget("b", "two")
    assert index.served_at == {"one": 7.0}

    index.forget("c", "one")
    assert index.served_at == {}


def dispatched(name: str, at: float, *, ended: bool) -> TaskState:
    state = task(name, [Stage.SEALED] * SAMPLES, ["r1"] * SAMPLES, ended=ended)
    return structs.replace(state, sessions=tuple(structs.replace(session, dispatched_at=at) for session in state.sessions))
