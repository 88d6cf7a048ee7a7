"""Owners of partitions, by the records of `fleet`."""

import asyncio
from typing import Any

import pytest
from tests.support.builders import listing
from tests.support.loop import LoopTime

from evener.service.fleet_feed import FleetRecord
from evener.service.owners import FRESH_SECONDS, Moved, Owners


def beat(instance: str, *partitions: int, epoch: int = 1, releasing: bool = False, at: float = 0, **given: Any) -> FleetRecord:
    address = given.pop("address", f"http://{instance}")
    return listing(instance, address, *partitions, epoch=epoch, releasing=releasing, at=at, **given)


class Clock:
    """A time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_highest_epoch_owns_a_partition_however_the_heartbeats_arrive() -> None:
    """A take-over, and a late heartbeat of the old owner, which has not noticed."""
    owners = Owners()
    owners.read([beat("a", 0, 1), beat("b", 1, epoch=2)])
    assert (owners.address(0), owners.address(1)) == ("http://a", "http://b")

    owners.read([beat("a", 0, 1, at=1)])
    assert owners.address(1) == "http://b"


def test_a_partition_that_is_given_up_has_no_owner() -> None:
    """Calls wait until somebody lists it."""
    owners = Owners()
    owners.read([beat("a", 0), beat("a", at=1)])

    assert owners.address(0) is None


def test_heartbeat_that_was_overtaken_by_a_later_one_of_its_process_changes_nothing() -> None:
    owners = Owners()
    owners.read([beat("a", at=2), beat("a", 0, at=1)])

    assert owners.address(0) is None


def test_a_gateway_that_came_back_elsewhere_is_found_there() -> None:
    """A restart draws another port."""
    owners = Owners()
    owners.read([beat("a", 0), beat("a", 0, address="http://a:2", epoch=2, at=1)])

    assert owners.address(0) == "http://a:2"


def test_other_services_and_other_records_are_left_alone() -> None:
    """`fleet` holds more than gateways."""
    owners = Owners()
    gone = FleetRecord(key="x", offset=0, event=None, written_at=0.0, heard_at=0.0)
    owners.read([gone, beat("e", 0, service="evaluator")])

    assert owners.address(0) is None


def test_holder_counts_only_while_it_is_heard_of() -> None:
    """A dead gateway is not waited for. One that hands over is."""
    clock = Clock()
    owners = Owners(clock)
    owners.read([beat("a", 0, releasing=True), beat("b", 1)])
    assert (owners.holder(0, besides="b"), owners.holder(0, besides="a")) == ("a", None)
    assert set(owners.living()) == {"a", "b"}

    clock.now += FRESH_SECONDS + 0.1
    owners.read([beat("b", 1, at=1)])
    assert owners.holder(0, besides="b") is None
    assert set(owners.living()) == {"b"}


async def test_partition_that_is_handed_over_is_waited_for_until_its_next_owner_lists_it() -> None:
    owners = Owners()
    owners.read([beat("a", 0, releasing=True)])
    waiting = asyncio.create_task(owners.serving(0))
    await asyncio.sleep(0)
    owners.read([beat("a", at=1)])
    await asyncio.sleep(0)
    assert not waiting.done()
    owners.read([beat("b", 0, epoch=2)])

    assert await waiting == "http://b"


async def test_handover_is_waited_for_as_long_as_its_gateway_is_heard_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that dies in one ends none."""
    time = LoopTime(monkeypatch)
    owners = Owners(lambda: time.now)
    owners.read([beat("a", 0, releasing=True)])
    waiting = asyncio.create_task(owners.handed_over(0))
    for number in range(10):
        await time.pass_by(FRESH_SECONDS / 2)
        owners.read([beat("a", 0, releasing=True, at=number + 1)])
    assert not waiting.done()
    await time.pass_by(FRESH_SECONDS + 0.1)
    await time.pass_by(FRESH_SECONDS + 0.1)

    await waiting


async def test_pause_ends_when_the_owner_changes() -> None:
    """However long it was to be."""
    owners = Owners()
    owners.read([beat("a", 0)])
    known = owners.hold(0)
    pausing = asyncio.create_task(owners.pause(0, known, 3600))
    await asyncio.sleep(0)
    owners.read([beat("a", 0, at=1)])
    await asyncio.sleep(0)
    assert not pausing.done()
    owners.read([beat("b", 0, epoch=2)])

    await pausing
    await owners.pause(0, known, 3600)  # a change that came before the pause counts as well


async def test_a_move_ends_a_block_that_waits_for_an_owner_that_is_none_any_more() -> None:
    """Only a later owner does, not another heartbeat of the same or of an earlier one."""
    owners = Owners()
    owners.read([beat("a", 0, epoch=2)])

    async def block() -> None:
        with owners.watched(0, {"http://a"}):
            await asyncio.Event().wait()

    blocked = asyncio.create_task(block())
    await asyncio.sleep(0)
    owners.read([beat("a", 0, 1, epoch=2, at=1), beat("b", 0)])
    await asyncio.sleep(0)
    assert not blocked.done()
    owners.read([beat("b", 0, epoch=3, at=1)])
    with pytest.raises(Moved, match="owned by http://b now"):
        await blocked
