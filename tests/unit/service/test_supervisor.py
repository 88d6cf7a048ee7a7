"""One service of a process: started again when it crashes, given up when that does not help."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tests.support.loop import turns
from tests.support.waiting import eventually
from tests.unit.service.services import Toy, for_ever, open_parts

from evener.bus.port import BusUnreachable, NotCommitted
from evener.proto.codec import decode
from evener.proto.errors import EvenerError, Hopeless
from evener.proto.fleet import Heartbeat, RunnerLeases, Running
from evener.proto.topics import Topic
from evener.runtime import faults
from evener.runtime.backoff import Backoff
from evener.service import supervisor
from evener.service.config import ServiceConfig
from evener.service.context import ServiceContext
from evener.service.supervisor import CrashLoop, Supervisor, Wanted, not_open

SOON = 60.0


@pytest.fixture
async def context(tmp_path: Path) -> AsyncIterator[ServiceContext]:
    async with open_parts(tmp_path) as context:
        yield context


def supervised(
    toy: Toy, context: ServiceContext, changed: Callable[[], None] = lambda: None, *, heartbeat_seconds: float = 2.0
) -> Supervisor:
    wanted = Wanted(name="toy", config=ServiceConfig(), open=toy.open)
    return Supervisor(wanted, context, changed, heartbeat_seconds=heartbeat_seconds, restart=Backoff(0.001, 0.01))


async def test_crashed_service_is_closed_and_opened_again(context: ServiceContext) -> None:
    """State that led to the crash is not kept."""

    async def crash_once(opening: int) -> None:
        if opening == 1:
            msg = "a bug"
            raise ValueError(msg)
        await for_ever(opening)

    toy = Toy(crash_once)
    keeper = supervised(toy, context)
    running = asyncio.create_task(keeper.run())
    await eventually(lambda: toy.openings == 2 and keeper.service is not None)

    assert toy.closed == 1
    assert keeper.conditions() == {"running": True, "warm": True}
    assert context.registry.get_sample_value("evener_crashes_total", {"service": "toy"}) == 1
    running.cancel()
    await asyncio.wait({running})
    assert toy.closed == 2
    assert keeper.conditions() == {"running": False}


async def test_service_that_returns_is_started_again(context: ServiceContext) -> None:
    """A service serves until it is cancelled: to return is to crash."""

    async def return_once(opening: int) -> None:
        if opening > 1:
            await for_ever(opening)

    toy = Toy(return_once)
    running = asyncio.create_task(supervised(toy, context).run())
    await eventually(lambda: toy.openings == 2)
    running.cancel()


async def test_service_whose_task_is_cancelled_alone_is_started_again(context: ServiceContext) -> None:
    """The planted fault `cancel@` strikes the service, not the process."""
    passed = 0

    async def pass_a_point(_: int) -> None:
        nonlocal passed
        while True:
            await faults.point("toy.step")
            passed += 1
            await asyncio.sleep(0)

    faults.arm("cancel@toy.step#2")
    toy = Toy(pass_a_point)
    running = asyncio.create_task(supervised(toy, context).run())
    await eventually(lambda: passed > 2)
    running.cancel()

    assert toy.openings == 2


async def test_first_opening_that_cannot_succeed_ends_the_start(context: ServiceContext) -> None:
    """A wrong configuration is told at once, not tried for ever."""

    async def refuse(_: int) -> None:
        msg = "the engine is another model"
        raise EvenerError(msg)

    toy = Toy(for_ever, opening=refuse)
    with pytest.raises(EvenerError, match="another model"):
        await supervised(toy, context).run()

    assert toy.openings == 1


async def test_first_opening_that_may_succeed_later_is_tried_again(context: ServiceContext) -> None:
    """A broker that starts at the same time is waited for."""

    async def unreachable_twice(opening: int) -> None:
        if opening < 3:
            msg = "no broker"
            raise BusUnreachable(msg)

    toy = Toy(for_ever, opening=unreachable_twice)
    keeper = supervised(toy, context)
    running = asyncio.create_task(keeper.run())
    await eventually(lambda: keeper.service is not None)
    running.cancel()

    assert toy.openings == 3


async def test_service_that_crashes_at_every_start_is_given_up(context: ServiceContext) -> None:
    """The process ends with the reason; who started it decides what next."""

    async def crash(_: int) -> None:
        msg = "the disk is gone"
        raise OSError(msg)

    toy = Toy(crash)
    with pytest.raises(CrashLoop, match="toy failed 8 times in a row, last: OSError: the disk is gone"):
        await supervised(toy, context).run()

    assert toy.openings == 8


async def test_service_whose_trouble_may_pass_is_never_given_up(context: ServiceContext) -> None:
    """A disk that is full for an hour has room again."""

    async def full(opening: int) -> None:
        if opening > 2 * supervisor.MAX_RAPID_CRASHES:
            await for_ever(opening)
        msg = "the disk is full"
        raise NotCommitted(msg)

    toy = Toy(full)
    keeper = supervised(toy, context)
    running = asyncio.create_task(keeper.run())
    await eventually(lambda: toy.openings > 2 * supervisor.MAX_RAPID_CRASHES and keeper.service is not None)

    assert keeper.trouble.startswith("the disk is full. ")
    running.cancel()


async def test_one_trouble_of_several_services_is_reported_once(context: ServiceContext) -> None:
    """A full disk stops them all, and is one thing to mend."""
    services = [supervised(Toy(for_ever), context) for _ in range(4)]
    for one, name, trouble in zip(services, "abcd", ("disk full", "disk full", "", "other"), strict=True):
        one.name, one.trouble = name, trouble

    assert not_open(services) == ("a, b (disk full)", "c", "d (other)")


async def test_service_without_hope_ends_the_process_at_once(context: ServiceContext) -> None:
    """The only engine samples something else than it reports."""

    async def hopeless(_: int) -> None:
        msg = "the only engine is refused"
        raise Hopeless(msg)

    toy = Toy(hopeless)
    with pytest.raises(Hopeless, match="the only engine is refused"):
        await supervised(toy, context).run()

    assert toy.openings == 1


async def test_heartbeats_stand_in_the_fleet(context: ServiceContext) -> None:
    """The first one at once."""
    toy = Toy(for_ever)
    running = asyncio.create_task(supervised(toy, context).run())
    async with asyncio.timeout(SOON):
        (record,) = await anext(context.bus.follow(Topic.FLEET, 0, 0))
    running.cancel()

    assert record.key == "test-toy"
    assert record.value is not None
    assert isinstance(decode(record.value), Heartbeat)


async def test_what_a_service_holds_is_written_with_each_heartbeat(context: ServiceContext) -> None:
    """Where only the scheduler reads it."""
    held = RunnerLeases(runner_id="test-toy", running=(Running(session_id="s", attempt=1),), at=1.0)
    running = asyncio.create_task(supervised(Toy(for_ever, leases=lambda: held), context, heartbeat_seconds=0.001).run())
    async with asyncio.timeout(SOON):
        (first, *_) = await anext(context.bus.follow(Topic.LEASES, 0, 0))
        (second, *_) = await anext(context.bus.follow(Topic.LEASES, 0, first.offset + 1))
    running.cancel()

    assert [(record.key, decode(record.value or b"")) for record in (first, second)] == [("test-toy", held)] * 2


async def test_heartbeat_that_says_something_new_is_sent_at_once(context: ServiceContext) -> None:
    """However long it is to the next one: an owner that has taken over is waited for."""
    keeper = supervised(Toy(for_ever), context, heartbeat_seconds=3600)
    running = asyncio.create_task(keeper.run())
    async with asyncio.timeout(SOON):
        beats = context.bus.follow(Topic.FLEET, 0, 0)
        await anext(beats)
        assert keeper.service is not None
        keeper.service.heartbeat_due.set()
        await anext(beats)
    running.cancel()


async def test_heartbeat_that_cannot_be_sent_does_not_end_the_service(context: ServiceContext) -> None:
    """It is logged, and the next one follows."""
    toy = Toy(for_ever, instance_id="x" * 2_000_000)  # too large a key
    keeper = supervised(toy, context, heartbeat_seconds=0.001)
    running = asyncio.create_task(keeper.run())
    with capture_logs() as logs:
        await eventually(lambda: sum(entry["event"] == "heartbeat_not_sent" for entry in logs) > 1)

    assert toy.openings == 1
    assert keeper.service is not None
    assert await context.bus.end(Topic.FLEET, 0) == 0
    running.cancel()


async def test_fleet_hears_of_a_stop_before_anything_is_handed_back(context: ServiceContext) -> None:
    """Else what a stopping runner gives up is dispatched to it again, and waits there for a lease."""
    toy = Toy(for_ever)
    toy.handed_back.clear()
    keeper = supervised(toy, context)
    running = asyncio.create_task(keeper.run())
    await eventually(lambda: keeper.service is not None)
    draining = asyncio.create_task(keeper.drain())

    async with asyncio.timeout(SOON):
        async for batch in context.bus.follow(Topic.FLEET, 0, 0):
            beat = decode(batch[-1].value or b"")
            if isinstance(beat, Heartbeat) and beat.stopping:
                break
    assert not draining.done()
    toy.handed_back.set()
    await draining
    running.cancel()
    await asyncio.wait([running])


async def test_drained_service_stays_open_until_it_is_closed(context: ServiceContext) -> None:
    """Requests under way still need it, also if its `run` ends."""
    drained = asyncio.Event()

    async def until_drained(_: int) -> None:
        await drained.wait()

    toy = Toy(until_drained)
    keeper = supervised(toy, context)
    running = asyncio.create_task(keeper.run())
    await eventually(lambda: keeper.service is not None)
    await keeper.drain()
    drained.set()
    await turns()

    assert (toy.drained, toy.openings, toy.closed) == (1, 1, 0)
    running.cancel()
    await asyncio.wait({running})
    assert toy.closed == 1
