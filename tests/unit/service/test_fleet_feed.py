"""One reader of `fleet` for all that follow it in a process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import pytest
from tests.support.builders import heartbeat
from tests.support.loop import Time
from tests.unit.service.services import open_parts

from evener.bus.port import Bus, BusUnreachable, Outgoing
from evener.proto.topics import Topic
from evener.service.context import ServiceContext
from evener.service.events import EventLog
from evener.service.fleet_feed import FleetFeed

SECONDS = 60.0


@pytest.fixture
async def context(tmp_path: Path) -> AsyncIterator[ServiceContext]:
    async with open_parts(tmp_path) as context, asyncio.timeout(SECONDS):
        yield context


async def beat(context: ServiceContext, name: str, at: float = 1.0) -> None:
    await EventLog(context.bus, context.blobs).send(Topic.FLEET, name, heartbeat("evaluator", name, at=at))


def readers() -> list[str]:
    """Return the tasks of this process that read `fleet`."""
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name() == "fleet"]


async def test_followers_of_a_process_share_one_reader(context: ServiceContext) -> None:
    """Each starts with what is known, and all get the same records. The reader ends with the last of them."""
    feed = FleetFeed(context.bus, Time(7.0))
    await beat(context, "old")
    async with aclosing(feed.follow()) as first:
        (old,) = await anext(first)
        await beat(context, "new")
        (new,) = await anext(first)
        async with aclosing(feed.follow()) as second:
            assert await anext(second) == [old, new]
            await beat(context, "newer")
            assert (await anext(first))[0] is (await anext(second))[0]
            assert readers() == ["fleet"]
        assert readers() == ["fleet"]
    assert readers() == []
    assert (old.key, old.heard_at, new.key, new.heard_at) == ("old", None, "new", 7.0)


async def test_deleted_instance_is_reported_once_and_is_not_known_any_more(context: ServiceContext) -> None:
    async with aclosing(context.fleet.follow()) as batches:
        assert await anext(batches) == []
        await beat(context, "gone")
        await anext(batches)
        await context.bus.send([Outgoing(topic=Topic.FLEET, key="gone", value=None)])
        (deleted,) = await anext(batches)
        assert (deleted.key, deleted.event) == ("gone", None)
        assert await context.fleet.now() == []


async def test_record_that_cannot_be_read_holds_nobody_up(context: ServiceContext) -> None:
    """The next one of its key replaces it."""
    await context.bus.send([Outgoing(topic=Topic.FLEET, key="bad", value=b"\xc1")])
    await beat(context, "good")

    assert [record.key for record in await context.fleet.now()] == ["good"]


class Away:
    """A log that is away until it is said to be there."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.away = True

    async def end(self, topic: str, partition: int) -> int:
        if self.away:
            msg = "no broker answers"
            raise BusUnreachable(msg)
        return await self._bus.end(topic, partition)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)


async def test_each_follower_hears_of_an_error_and_may_follow_again(context: ServiceContext) -> None:
    """A service that fails for it is started again."""
    log = Away(context.bus)
    feed = FleetFeed(cast("Bus", log))
    outcomes = await asyncio.gather(feed.now(), feed.now(), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [BusUnreachable, BusUnreachable]
    log.away = False
    await beat(context, "there")

    assert [record.key for record in await feed.now()] == ["there"]
