"""Kinds of sandboxes: what runners are told to prepare, and to whom sessions go that need it."""

from collections import Counter

from tests.support.builders import T0, heartbeat

from evener.proto.blobs import BlobRef
from evener.proto.fleet import Heartbeat, WarmSandboxes
from evener.proto.sandbox import SandboxKind, SandboxOffer
from evener.proto.sessions import SessionDispatched
from evener.proto.spec import GraderSpec, HarnessSpec, TaskRef
from evener.proto.state import TaskState
from evener.proto.tasks import TaskOptions, TaskSubmitted
from evener.scheduler.admission import FreeSlots, admit
from evener.scheduler.core import Draft
from evener.scheduler.open_tasks import OpenTasks
from evener.scheduler.sandbox_kinds import LOOKAHEAD_SESSIONS, MAX_KINDS, next_up


def kind(needs: str, harness: str = "script") -> SandboxKind:
    return SandboxKind(backend="docker", harness=harness, needs=needs)


def runner(name: str, *, capacity: int = 4, **warm: int) -> Heartbeat:
    there = tuple(WarmSandboxes(kind=kind(needs), ready=ready) for needs, ready in warm.items())
    return heartbeat("sandbox_runner", name, capacity=capacity, warm=there)


class Deployment:
    """Committed tasks."""

    def __init__(self) -> None:
        self.known: dict[str, TaskState] = {}
        self.open = OpenTasks()

    def submit(self, task_id: str, sessions: int, needs: str, *, run_id: str = "run", sandbox: str = "docker") -> None:
        ref = TaskRef(name=task_id, digest="0" * 64, archive=BlobRef(digest="0" * 64, size=1))
        harness = HarnessSpec(name="script", sandbox=sandbox)
        options = TaskOptions(run_id=run_id, samples=sessions, harness=harness, grader=GraderSpec(name="none"))
        draft = Draft(self.known, now=T0)
        draft.submit(TaskSubmitted(task_id=task_id, task=ref, options=options, sandbox_digest=needs, submitted_at=T0))
        self._commit(draft)

    def admit(self, *runners: Heartbeat) -> Counter[tuple[str, str]]:
        """Return how many sessions of each task each runner gets."""
        draft = Draft(self.known, now=T0 + 1)
        admit(draft, self.open, runners, now=T0 + 1, lease_seconds=10)
        self._commit(draft)
        events = [write.event for write in draft.writes if isinstance(write.event, SessionDispatched)]
        return Counter((event.spec.task_id, event.runner_id) for event in events)

    def held(self, *runners: Heartbeat) -> dict[str, str] | None:
        """Return why tasks wait although there are free slots."""
        return admit(Draft(self.known, now=T0 + 1), self.open, runners, now=T0 + 1, lease_seconds=10)

    def next_up(self, *held_back: str) -> list[tuple[str, int]]:
        return [(queued.kind.needs, queued.sessions) for queued in next_up(self.open, set(held_back))]

    def _commit(self, draft: Draft) -> None:
        self.known.update(draft.changed)
        self.open.update(draft.changed.values())


def test_sessions_go_where_their_sandbox_is_warm() -> None:
    """Also where fewer slots are free; as many as are warm, and the others to the freest."""
    at = Deployment()
    at.submit("t", 5, "a")

    assert at.admit(runner("cold", capacity=10), runner("warm", capacity=4, a=2)) == {("t", "warm"): 2, ("t", "cold"): 3}


def test_warm_runner_takes_no_more_than_it_has_slots() -> None:
    at = Deployment()
    at.submit("t", 4, "a")

    assert at.admit(runner("cold"), runner("warm", capacity=1, a=4)) == {("t", "warm"): 1, ("t", "cold"): 3}


def test_sandbox_of_another_kind_is_no_reason() -> None:
    at = Deployment()
    at.submit("t", 1, "a")

    assert at.admit(runner("free", capacity=2), runner("warm", capacity=1, b=1)) == {("t", "free"): 1}


def test_freest_of_the_warm_ones_is_next() -> None:
    at = Deployment()
    at.submit("t", 2, "a")

    assert at.admit(runner("less", capacity=2, a=2), runner("more", capacity=4, a=2)) == {("t", "more"): 2}


def test_queue_is_told_by_kinds_with_the_next_ones_first() -> None:
    """Runs take turns; tasks of one kind count together; what has started does not count."""
    at = Deployment()
    at.submit("one", 2, "a")
    at.submit("two", 2, "b")
    at.submit("three", 1, "a")
    at.submit("other", 1, "c", run_id="other")
    assert at.next_up() == [("a", 3), ("c", 1), ("b", 2)]

    at.admit(runner("r", capacity=3))
    assert at.next_up() == [("b", 2), ("a", 1)]


def test_sessions_that_do_not_start_are_not_prepared_for() -> None:
    """A quota holds them back, or nothing is to be prepared: recordings, plain processes, tasks of an older scheduler."""
    at = Deployment()
    at.submit("held", 2, "a")
    at.submit("local", 2, "b", sandbox="local")
    at.submit("recording", 2, "c", sandbox="none")
    at.submit("old", 2, "")
    at.submit("next", 1, "d")

    assert at.next_up("held") == [("d", 1)]


def test_what_is_told_is_bounded() -> None:
    """However long the queue is."""
    at = Deployment()
    for number in range(MAX_KINDS + 5):
        at.submit(f"t{number}", 1, f"k{number}")
    assert len(at.next_up()) == MAX_KINDS

    at = Deployment()
    for number in range(4):
        at.submit(f"t{number}", LOOKAHEAD_SESSIONS // 2, "same" if number < 2 else "later")
    assert at.next_up() == [("same", LOOKAHEAD_SESSIONS)]


def of(name: str, *backends: str, capacity: int = 4) -> Heartbeat:
    return heartbeat("sandbox_runner", name, capacity=capacity, sandboxes=SandboxOffer(backends=backends))


def test_sessions_go_only_to_runners_that_open_their_sandbox() -> None:
    """However much room the others have; further sessions wait for the one that opens it."""
    deployment = Deployment()
    deployment.submit("contained", 6, "a")
    deployment.submit("plain", 4, "b", sandbox="local")

    found = deployment.admit(of("small", "local", capacity=8), of("docker", "docker", capacity=2))

    assert found == {("contained", "docker"): 2, ("plain", "small"): 4}


def test_task_whose_sandbox_no_runner_opens_waits_and_says_why() -> None:
    """The one that has it may be starting again. A runner that does not say what it opens gets it, and refuses it by name."""
    deployment = Deployment()
    deployment.submit("contained", 1, "a")

    assert deployment.held(of("small", "local")) == {"contained": "no runner has sandboxes of `docker`"}
    assert deployment.admit(of("small", "local"), runner("older")) == {("contained", "older"): 1}


def test_attempt_that_its_only_fitting_runner_lost_goes_there_again() -> None:
    """A free slot elsewhere is worth nothing."""
    deployment = Deployment()
    deployment.submit("contained", 1, "a")
    slots = FreeSlots((of("small", "local"), of("docker", "docker")), {}, deployment.open, Draft(deployment.known, now=T0))

    taken = slots.take("docker", failed_on=("docker",))

    assert taken is not None
    assert taken.instance_id == "docker"
