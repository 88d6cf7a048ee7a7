"""Leases by what `leases` says, with a clock that the test turns."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec import structs
from tests.support.builders import dispatched, spec
from tests.support.loop import Time
from tests.support.other_services import OtherServices
from tests.support.service_context import open_parts

from evener.proto.fleet import Running
from evener.proto.topics import Topic
from evener.scheduler.config import Config
from evener.scheduler.fleet_reader import FleetReader
from evener.service.context import ServiceContext
from evener.service.fleet_feed import FleetFeed

CONFIG = Config(bus="unused", lease_seconds=10.0, tick_seconds=1.0)
HELD = dispatched("t.0", spec("t"))
ATTEMPT = Running(session_id="t.0", attempt=1)


class Reading:
    """A reader of `fleet`, and a runner that it hears of."""

    def __init__(self, context: ServiceContext) -> None:
        self.time = Time()
        self.reader = FleetReader(CONFIG, structs.replace(context, fleet=FleetFeed(context.bus, self.time)), self.time)
        self.others = OtherServices(context.bus, context.blobs)

    async def ticks(self, seconds: float) -> list[Running]:
        """Let time pass tick by tick; return what is lost by then."""
        lost: list[Running] = []
        for _ in range(int(seconds / CONFIG.tick_seconds)):
            self.time.now += CONFIG.tick_seconds
            lost = await self.reader.lost([ATTEMPT])
        return lost


@pytest.fixture
async def reading(tmp_path: Path) -> AsyncIterator[Reading]:
    async with open_parts(tmp_path) as context:
        yield Reading(context)


async def test_attempt_that_no_runner_names_is_lost_after_a_lease(reading: Reading) -> None:
    await reading.reader.start()
    reading.reader.leases.sign([ATTEMPT], now=reading.time.now)
    await reading.others.beat()

    assert await reading.ticks(CONFIG.lease_seconds) == []
    assert await reading.ticks(1) == [ATTEMPT]


async def test_attempt_that_its_runner_names_is_never_lost(reading: Reading) -> None:
    """Also where that was not read yet when the lease was over: the topic is read to its end first."""
    await reading.reader.start()
    for _ in range(5):
        await reading.others.beat(running=[HELD])
        assert await reading.ticks(CONFIG.lease_seconds + 1) == []


async def test_attempts_of_a_runner_that_was_forgotten_are_held_by_nobody(reading: Reading) -> None:
    """`GET /fleet` lists it no more, and the log forgets both."""
    await reading.others.beat(running=[HELD])
    await reading.reader.start()
    assert reading.reader.running == {"runner": (ATTEMPT,)}
    reading.time.now += CONFIG.forget_seconds + 1
    await reading.reader.forget_the_dead()

    assert (reading.reader.fleet.heartbeats, reading.reader.running) == ({}, {})
    for topic in (Topic.FLEET, Topic.LEASES):
        assert await reading.others.bus.last_values(topic, 0) == {}


async def test_paused_process_takes_nobody_for_lost(reading: Reading) -> None:
    """Two leases asleep, runner and scheduler alike: the time counts for no lease."""
    await reading.reader.start()
    reading.reader.leases.sign([ATTEMPT], now=reading.time.now)
    reading.time.now += 2 * CONFIG.lease_seconds

    assert await reading.reader.lost([ATTEMPT]) == []
    assert await reading.ticks(CONFIG.lease_seconds - 1) == []
    assert await reading.ticks(2) == [ATTEMPT]


async def test_leases_begin_again_at_a_take_over(reading: Reading) -> None:
    """The time without a scheduler counts for nobody."""
    await reading.others.beat(running=[HELD])
    reading.time.now += 2 * CONFIG.lease_seconds
    await reading.reader.start()

    assert await reading.ticks(CONFIG.lease_seconds) == []
    assert await reading.ticks(1) == [ATTEMPT]
