"""Which runner prepares which sandboxes: together as many as sessions are queued, and the same ones as before."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from tests.support.builders import heartbeat

from evener.proto.blobs import BlobRef
from evener.proto.fleet import Heartbeat, QueuedSessions
from evener.proto.sandbox import SandboxKind
from evener.proto.spec import TaskRef
from evener.sandbox_runner.queue_share import ALIVE_SECONDS, QueueShare
from evener.service.fleet_feed import FleetRecord

TASK = TaskRef(name="t", digest="0" * 64, archive=BlobRef(digest="0" * 64, size=1))


def kind(name: str) -> SandboxKind:
    return SandboxKind(backend="docker", harness="script", needs=name)


def told(beat: Heartbeat, at: float | None = 0.0) -> FleetRecord:
    return FleetRecord(key=beat.instance_id, offset=0, event=beat, written_at=0.0, heard_at=at)


def scheduler(name: str = "s", *, at: float | None = 0.0, epoch: int = 1, **sessions: int) -> FleetRecord:
    return queueing(sessions, name, at=at, epoch=epoch)


def queueing(sessions: Mapping[str, int], name: str = "s", *, at: float | None = 0.0, epoch: int = 1) -> FleetRecord:
    queued = tuple(QueuedSessions(kind=kind(each), task=TASK, sessions=count) for each, count in sessions.items())
    return told(heartbeat("scheduler", name, active_epoch=epoch, queued=queued), at)


def runner(name: str, *, at: float | None = 0.0, **given: Any) -> FleetRecord:
    return told(heartbeat("sandbox_runner", name, **{"capacity": 4} | given), at)


def shares(names: str, *records: FleetRecord, now: float = 1.0) -> dict[str, Counter[str]]:
    """Return what each runner prepares."""
    found = {}
    for name in names:
        share = QueueShare(name)
        share.read([*map(runner, names), *records])
        found[name] = Counter({each.kind.needs: each.sessions for each in share.share(now=now)})
    return found


def test_runners_prepare_each_sandbox_once() -> None:
    """Whatever the numbers: together as many as there are sessions, evenly."""
    for often in (1, 2, 3, 7, 100):
        found = shares("abc", scheduler(often=often, once=1))
        assert sum(found.values(), Counter()) == {"often": often, "once": 1}
        assert max(share["often"] for share in found.values()) - min(share["often"] for share in found.values()) <= 1


def test_single_sandboxes_are_spread_and_stay_where_they_were() -> None:
    """A kind's place does not depend on what else is queued: its image is there already."""
    many = {f"k{number}": 1 for number in range(60)}
    before, after = shares("abc", queueing(many)), shares("abc", queueing(dict(list(many.items())[30:])))

    assert min(len(share) for share in before.values()) > 10
    assert all(after[name] <= before[name] for name in "abc")


def test_next_sessions_come_first() -> None:
    """In the order of the queue."""
    share = QueueShare("a")
    share.read([scheduler(third=1, first=1, second=1)])

    assert [each.kind.needs for each in share.share(now=1.0)] == ["third", "first", "second"]


def test_queues_of_all_schedulers_are_added() -> None:
    """They share the runners."""
    assert shares("a", scheduler("one", x=2), scheduler("two", x=1, y=1))["a"] == {"x": 3, "y": 1}


def test_only_the_living_count() -> None:
    """A runner that stops, or that is silent, or that has no slots, leaves its share to the others; a silent scheduler queues nothing."""
    assert shares("ab", runner("b", stopping=True), scheduler(x=4))["a"] == {"x": 4}
    assert shares("ab", runner("b", capacity=0), scheduler(x=4))["a"] == {"x": 4}
    assert shares("ab", runner("b", at=None), scheduler(x=4))["a"] == {"x": 4}
    assert shares("ab", scheduler(x=4), now=ALIVE_SECONDS + 1)["a"] == Counter()
    assert shares("ab", scheduler(at=5.0, x=4), now=ALIVE_SECONDS + 1)["a"] == {"x": 4}
    assert shares("a", scheduler(at=None, x=4))["a"] == Counter()


def test_scheduler_that_stands_by_queues_nothing_any_more() -> None:
    """Its successor tells."""
    assert shares("a", scheduler(x=4), scheduler(epoch=0))["a"] == Counter()


def test_instance_that_was_deleted_is_gone() -> None:
    gone = FleetRecord(key="s", offset=1, event=None, written_at=0.0, heard_at=0.0)

    assert shares("a", scheduler(x=4), gone)["a"] == Counter()
