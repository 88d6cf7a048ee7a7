"""Which scheduler is the active one, by heartbeats in any order of trouble."""

from typing import Any

from tests.support import builders

from evener.proto.fleet import Heartbeat
from evener.scheduler.active import ActiveScheduler
from evener.scheduler.fleet import Fleet


def beat(name: str, epoch: int, *, stopping: bool = False, scheduler: str = "main") -> Heartbeat:
    given: dict[str, Any] = {"address": f"http://{name}", "active_epoch": epoch, "stopping": stopping, "scheduler": scheduler}
    return builders.heartbeat("scheduler", name, **given)


def told(*beats: Heartbeat) -> str | None:
    """Return the address after these heartbeats."""
    active = ActiveScheduler("main")
    active.read(beats)
    return active.address


def test_active_scheduler_is_the_one_with_the_highest_epoch() -> None:
    """A frozen one that wakes still says for a moment that it is active."""
    assert told(beat("a", 1), beat("b", 2), beat("a", 1)) == "http://b"
    assert told(beat("a", 1), beat("b", 2), beat("a", 3)) == "http://a"


def test_nobody_is_active_between_one_that_stands_down_and_the_next() -> None:
    """Stopped, or fenced. What another standby says changes nothing."""
    assert told(beat("a", 1), beat("a", 0)) is None
    assert told(beat("a", 1), beat("a", 1, stopping=True)) is None
    assert told(beat("a", 1), beat("b", 0)) == "http://a"
    assert told(beat("a", 2), beat("a", 0), beat("b", 1)) is None


def test_schedulers_of_other_names_are_others() -> None:
    assert told(beat("a", 1), beat("c", 7, scheduler="other")) == "http://a"


def test_fleet_shows_one_active_scheduler_of_a_name() -> None:
    """The last heartbeat of a dead one stands there for a while."""
    fleet = Fleet(lease_seconds=10)
    beats = [beat("dead", 1), beat("b", 2), beat("standby", 0), beat("c", 1, scheduler="other")]
    for one in beats:
        fleet.read(one, now=0.0)
    assert [fleet.is_active(one) for one in beats] == [False, True, False, True]
