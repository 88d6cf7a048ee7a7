"""Owners of partitions, by the records of `fleet` in their order."""

import asyncio

from tests.support.builders import listing

from evener.bus.port import Record
from evener.sandbox_runner.owners import Owners


def beat(instance: str, *partitions: int, address: str | None = None, service: str = "provider_gateway") -> Record:
    return listing(instance, address or f"http://{instance}", *partitions, service=service)


def test_the_last_that_lists_a_partition_owns_it() -> None:
    """A take-over: the new owner lists it before the old one's next heartbeat."""
    owners = Owners()
    owners.read([beat("a", 0, 1), beat("b", 1)])
    assert (owners.address(0), owners.address(1)) == ("http://a", "http://b")

    owners.read([beat("a", 0)])
    assert owners.address(1) == "http://b"


def test_a_partition_that_is_given_up_has_no_owner() -> None:
    """Calls wait until somebody lists it."""
    owners = Owners()
    owners.read([beat("a", 0), beat("a")])

    assert owners.address(0) is None


def test_a_gateway_that_came_back_elsewhere_is_found_there() -> None:
    """A restart draws another port."""
    owners = Owners()
    owners.read([beat("a", 0), beat("a", 0, address="http://a:2")])

    assert owners.address(0) == "http://a:2"


def test_other_services_and_other_records_are_left_alone() -> None:
    """`fleet` holds more than gateways, and perhaps what a later version writes."""
    owners = Owners()
    bad = Record(topic="fleet", partition=0, offset=0, key="x", value=b"\xc1", headers=(), timestamp_ms=0)
    owners.read([bad, beat("e", 0, service="evaluator")])

    assert owners.address(0) is None


async def test_a_move_wakes_who_waits_for_it() -> None:
    """Only for a gateway that was not known before."""
    owners = Owners()
    owners.read([beat("a", 0)])
    waiting = asyncio.create_task(owners.moved(0, {"http://a"}))
    await asyncio.sleep(0)
    owners.read([beat("a", 0)])
    await asyncio.sleep(0)
    assert not waiting.done()

    owners.read([beat("b", 0)])

    assert await waiting == "http://b"
