"""Quotas: no session starts beyond them, the reason is told, and what was spent is known after a take-over too."""

from collections import Counter

from tests.support import builders
from tests.support.builders import T0, heartbeat

from evener.proto.sessions import SessionDispatched
from evener.proto.spec import GraderSpec, HarnessSpec
from evener.proto.state import TaskState
from evener.proto.tasks import TaskOptions, TaskSubmitted
from evener.scheduler.admission import admit
from evener.scheduler.core import Draft
from evener.scheduler.open_tasks import OpenTasks
from evener.scheduler.quotas import HOUR_SECONDS, Spending
from evener.service.principals import Quota

RUNNER = heartbeat("sandbox_runner", "r", capacity=100)
OPTIONS = TaskOptions(harness=HarnessSpec(name="script"), grader=GraderSpec(name="none"))


class Deployment:
    """Committed tasks, and the quotas that hold."""

    def __init__(self, **quotas: Quota) -> None:
        self.known: dict[str, TaskState] = {}
        self.spending = Spending()
        self._quotas = {name.replace("_", " "): quota for name, quota in quotas.items()}

    def submit(self, task_id: str, principal: str, team: str, samples: int) -> None:
        options = TaskOptions(run_id=task_id, samples=samples, harness=OPTIONS.harness, grader=OPTIONS.grader)
        submitted = TaskSubmitted(task_id=task_id, task=None, options=options, principal=principal, team=team, submitted_at=T0)
        draft = Draft(self.known, now=T0)
        draft.submit(submitted)
        self._commit(draft)

    def admit(self, now: float = T0 + 1) -> tuple[Counter[str], dict[str, str] | None]:
        """Return how many sessions of each task start, and the reasons why others do not."""
        draft = Draft(self.known, now=now)
        spent = self.spending.within_the_hour(now)
        reasons = admit(draft, OpenTasks(self.known.values()), [RUNNER], now=now, lease_seconds=10, quotas=self._holders, spent=spent)
        self._commit(draft)
        events = [write.event for write in draft.writes]
        return Counter(event.spec.task_id for event in events if isinstance(event, SessionDispatched)), reasons

    def seal(self, session_id: str, tokens: int, at: float) -> None:
        draft = Draft(self.known, now=at)
        draft.read(builders.sealed(session_id, at=at, sampled_tokens=tokens))
        self._commit(draft)

    def _holders(self, principal: str, team: str) -> list[tuple[str, Quota]]:
        return [(holder, self._quotas[holder]) for holder in (f"principal {principal}", f"team {team}") if holder in self._quotas]

    def _commit(self, draft: Draft) -> None:
        for task_id, state in draft.changed.items():
            self.spending.note(self.known.get(task_id), state)
        self.known.update(draft.changed)


def test_no_session_starts_beyond_a_principals_quota() -> None:
    """A colleague's sessions start all the same, and hers as soon as one of hers has ended."""
    at = Deployment(principal_ann=Quota(sessions=2))
    at.submit("hers", "ann", "search", 4)
    at.submit("his", "bob", "search", 3)

    assert at.admit() == (Counter(hers=2, his=3), {"hers": "principal ann has 2 of 2 sessions running"})
    at.seal("hers.0", 10, T0 + 2)
    assert at.admit()[0] == Counter(hers=1)
    assert at.admit()[0] == Counter()


def test_quota_of_a_team_bounds_its_members_together() -> None:
    """Also where each of them has a quota of their own."""
    at = Deployment(team_search=Quota(sessions=3), principal_ann=Quota(sessions=2))
    at.submit("hers", "ann", "search", 4)
    at.submit("his", "bob", "search", 4)
    at.submit("theirs", "cleo", "core", 2)

    started, reasons = at.admit()

    assert started["hers"] + started["his"] == 3
    assert started["theirs"] == 2
    assert reasons is not None
    assert set(reasons.values()) <= {"team search has 3 of 3 sessions running", "principal ann has 2 of 2 sessions running"}
    assert set(reasons) == {"hers", "his"}


def test_nothing_starts_for_an_hour_after_the_tokens_were_sampled() -> None:
    """Tokens count when their session ends; those of an hour ago count no more."""
    at = Deployment(team_search=Quota(tokens_per_hour=100))
    at.submit("first", "ann", "search", 2)
    assert at.admit()[0] == Counter(first=2)
    at.seal("first.0", 60, T0 + 10)
    at.seal("first.1", 50, T0 + 20)
    at.submit("second", "bob", "search", 1)

    assert at.admit(T0 + 30) == (Counter(), {"second": "team search sampled 110 of 100 tokens within the hour"})
    assert at.admit(T0 + 9 + HOUR_SECONDS)[0] == Counter()
    assert at.admit(T0 + 11 + HOUR_SECONDS) == (Counter(second=1), {})


def test_next_scheduler_knows_what_was_spent() -> None:
    """It is in the state of the tasks: a restart is no way round a quota."""
    at = Deployment(team_search=Quota(tokens_per_hour=100))
    at.submit("first", "ann", "search", 1)
    at.admit()
    at.seal("first.0", 100, T0 + 10)
    at.submit("second", "ann", "search", 1)

    at.spending = Spending()
    for state in at.known.values():
        at.spending.note(None, state)

    assert at.admit(T0 + 30)[0] == Counter()


def test_seal_that_is_read_again_counts_once() -> None:
    """Records are delivered at least once."""
    at = Deployment()
    at.submit("t", "ann", "search", 1)
    at.admit()
    for _ in range(2):
        at.seal("t.0", 7, T0 + 10)

    assert at.spending.within_the_hour(T0 + 11) == {"principal ann": 7, "team search": 7}


def test_quota_of_nothing_lets_nothing_start() -> None:
    """0 is a limit; None is none."""
    at = Deployment(principal_ann=Quota(sessions=0))
    at.submit("t", "ann", "search", 1)

    assert at.admit() == (Counter(), {"t": "principal ann has 0 of 0 sessions running"})


def test_without_a_free_place_nothing_is_said_of_quotas() -> None:
    """The reason that was told last stays, so that it does not flicker."""
    at = Deployment(principal_ann=Quota(sessions=0))
    at.submit("t", "ann", "search", 1)
    draft = Draft(at.known, now=T0)

    assert admit(draft, OpenTasks(at.known.values()), [], now=T0, lease_seconds=10) is None
