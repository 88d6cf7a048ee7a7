"""Members of a group on a real broker: who gets which partition when one joins, leaves, is killed, or comes back."""

import asyncio
import secrets
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from tests.support.waiting import until

from evener.bus.kafka import KafkaBus, open_kafka
from evener.bus.port import Membership
from evener.proto.topics import TOPICS, Topic

pytestmark = pytest.mark.kafka

CALLS = Topic.SESSIONS
FEW = {CALLS: TOPICS[CALLS]}
COUNT = 8
SECONDS = 120.0
"""What a test waits for anything."""
PROGRAM = f"""
import asyncio, sys
from evener.bus.kafka import open_kafka
from evener.proto.topics import TOPICS, Topic

async def main(servers, prefix, name):
    async with open_kafka(servers, {{Topic.SESSIONS: TOPICS[Topic.SESSIONS]}}, {COUNT}, prefix) as bus:
        print("open", flush=True)
        sys.stdin.readline()
        async with bus.join("gateways", Topic.SESSIONS, name) as member:
            while True:
                print(*sorted(await member.changed()), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""
"""A member that reports its assignments. It joins on command."""


@pytest.fixture
def prefix() -> str:
    return f"t{secrets.token_hex(4)}."


@pytest.fixture
async def bus(kafka_servers: str, prefix: str) -> AsyncIterator[KafkaBus]:
    async with open_kafka(kafka_servers, FEW, COUNT, prefix) as bus:
        yield bus


class Program:
    """A member in a process of its own, which can be killed."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def line(self) -> list[int]:
        """Return its next assignment."""
        assert self._process.stdout
        async with asyncio.timeout(SECONDS):
            return [int(word) for word in (await self._process.stdout.readline()).split()]

    async def join(self) -> list[int]:
        """Let it join; return its first assignment."""
        assert self._process.stdin
        self._process.stdin.write(b"\n")
        return await self.line()

    async def kill(self) -> None:
        self._process.kill()
        await self._process.wait()


@asynccontextmanager
async def program(servers: str, prefix: str, name: str) -> AsyncIterator[Program]:
    """Start a program and wait until it could join."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, servers, prefix, name, stdin=PIPE, stdout=PIPE)
    assert process.stdout
    try:
        async with asyncio.timeout(SECONDS):
            assert await process.stdout.readline() == b"open\n"
        yield Program(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        process._transport.close()  # type: ignore[attr-defined] # or its pipes are closed by the collector, with a warning


async def divided(members: Iterable[Membership], *, count: int = COUNT) -> None:
    """Wait until these members have so many partitions together, evenly, and none rebalances."""
    kept = list(members)

    async def are_divided() -> bool:
        await asyncio.gather(*(one.changed() for one in kept if one.dividing))
        sizes = [len(one.partitions) for one in kept]
        together = frozenset[int]().union(*(one.partitions for one in kept))
        return sum(sizes) == len(together) == count and max(sizes) - min(sizes) <= 1 and not any(one.dividing for one in kept)

    await until(are_divided)


async def test_only_what_must_move_moves_when_members_join_and_leave(bus: KafkaBus) -> None:
    """Eight partitions: the second member takes four, the third takes two, and one that leaves hands its own to the others."""
    async with AsyncExitStack() as leaving, bus.join("gateways", CALLS, "a") as a:
        await divided([a])
        b = await leaving.enter_async_context(bus.join("gateways", CALLS, "b"))
        await divided([a, b])
        alone = frozenset(range(COUNT))
        assert a.partitions | b.partitions == alone
        had = a.partitions, b.partitions
        async with bus.join("gateways", CALLS, "c") as c:
            await divided([a, b, c])
            assert c.partitions
            assert a.partitions < had[0] or a.partitions == had[0]
            assert b.partitions < had[1] or b.partitions == had[1]
            had = a.partitions, c.partitions
            await leaving.aclose()
            await divided([a, c])
            assert had[0] < a.partitions
            assert had[1] < c.partitions


async def test_member_that_is_killed_leaves_its_partitions_to_the_others_alone(bus: KafkaBus, kafka_servers: str, prefix: str) -> None:
    """What the others had stays with them; and when it comes back later, it takes no more than its share."""
    async with bus.join("gateways", CALLS, "a") as a, bus.join("gateways", CALLS, "b") as b, AsyncExitStack() as programs:
        killed = await programs.enter_async_context(program(kafka_servers, prefix, "c"))
        came = await killed.join()
        await divided([a, b], count=COUNT - len(came))
        had = a.partitions, b.partitions
        await killed.kill()
        await divided([a, b])
        assert had[0] <= a.partitions
        assert had[1] <= b.partitions
        had = a.partitions, b.partitions

        back = await programs.enter_async_context(program(kafka_servers, prefix, "c"))
        came = await back.join()
        await divided([a, b], count=COUNT - len(came))
        assert a.partitions < had[0] or a.partitions == had[0]
        assert b.partitions < had[1] or b.partitions == had[1]
        assert len(came) == 2


async def test_member_that_is_killed_and_comes_back_at_once_gets_its_partitions_back(
    bus: KafkaBus, kafka_servers: str, prefix: str
) -> None:
    """It has a name: the group does not notice, and does not rebalance."""
    async with AsyncExitStack() as programs, bus.join("gateways", CALLS, "a") as a:
        killed = await programs.enter_async_context(program(kafka_servers, prefix, "b"))
        back = await programs.enter_async_context(program(kafka_servers, prefix, "b"))
        had = await killed.join()
        await divided([a], count=COUNT - len(had))
        mine = await a.changed()
        next_one = asyncio.create_task(a.changed())
        await asyncio.sleep(0)
        await killed.kill()

        assert await back.join() == had
        assert a.partitions == mine
        assert not next_one.done()
        next_one.cancel()


async def test_member_keeps_its_assignment_while_the_group_rebalances(bus: KafkaBus, kafka_servers: str, prefix: str) -> None:
    """aiokafka takes everything from everybody at each join; nothing of that is lost until the next assignment is known."""
    async with bus.join("gateways", CALLS, "a") as a, AsyncExitStack() as programs:
        await divided([a])
        joins = await programs.enter_async_context(program(kafka_servers, prefix, "b"))
        joining = asyncio.create_task(joins.join())
        async with asyncio.timeout(SECONDS):
            while not a.dividing and len(a.partitions) == COUNT:  # noqa: ASYNC110 - a state that passes
                await asyncio.sleep(0)
        standing = a.partitions
        came = await joining

        assert standing
        assert len(came) == COUNT // 2
