"""Partitions of a consumer group: one task each."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.waiting import eventually

from evener.bus.open import open_bus
from evener.bus.port import Bus, Fenced
from evener.proto.topics import Topic
from evener.service.partitions import Owned, own_partitions


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[Bus]:
    async with open_bus(f"embedded:{tmp_path}", partitions=3) as bus:
        yield bus


class Assigned:
    """A membership whose partitions are set by hand."""

    def __init__(self) -> None:
        self.partitions: frozenset[int] = frozenset()
        self.dividing = False

    async def changed(self) -> frozenset[int]:
        return self.partitions

    def assign(self, owned: Owned, partitions: set[int]) -> None:
        self.partitions = frozenset(partitions)
        self.dividing = False
        owned.assign(self.partitions, self)


def serving() -> list["asyncio.Task[object]"]:
    """Return the tasks of partitions."""
    return [task for task in asyncio.all_tasks() if task.get_name().startswith("partition-")]


def end_all() -> None:
    """Cancel the tasks of partitions."""
    for task in serving():
        task.cancel()


class Served:
    """Notes which partitions are being served."""

    def __init__(self) -> None:
        self.now: set[int] = set()
        self.begun: list[int] = []

    async def serve(self, partition: int) -> None:
        self.begun.append(partition)
        self.now.add(partition)
        try:
            await asyncio.Event().wait()
        finally:
            self.now.discard(partition)


async def test_every_assigned_partition_is_served_until_the_end(bus: Bus) -> None:
    """On the embedded bus the only member gets all."""
    served = Served()
    owning = asyncio.create_task(own_partitions(bus, "g", Topic.SESSIONS, "a", served.serve, fenced_seconds=0.01))
    await eventually(lambda: len(served.now) == 3)
    owning.cancel()
    await asyncio.wait({owning})

    assert sorted(served.begun) == [0, 1, 2]
    assert served.now == set()
    assert owning.cancelled()


async def test_fenced_owner_takes_over_again_after_a_pause(bus: Bus) -> None:
    """Fenced is not replaced: a broker's time-out fences a frozen sole owner, too."""
    served = Served()
    fenced = asyncio.Event()

    async def serve(partition: int) -> None:
        if partition == 1 and not fenced.is_set():
            fenced.set()
            msg = "sessions-1"
            raise Fenced(msg)
        await served.serve(partition)

    owning = asyncio.create_task(own_partitions(bus, "g", Topic.SESSIONS, "a", serve, fenced_seconds=0.01))
    await eventually(lambda: served.now == {0, 1, 2})
    owning.cancel()


async def test_failure_of_one_partition_ends_all(bus: Bus) -> None:
    """The host starts the service again; half of one is none."""
    served = Served()

    async def serve(partition: int) -> None:
        if partition == 2:
            msg = "a bug"
            raise ValueError(msg)
        await served.serve(partition)

    with pytest.raises(ValueError, match="a bug"):
        await own_partitions(bus, "g", Topic.SESSIONS, "a", serve, fenced_seconds=0.01)

    assert served.now == set()


async def test_partition_that_is_assigned_elsewhere_is_given_up_at_once() -> None:
    """What stays is left alone."""
    served = Served()
    assigned = Assigned()
    async with asyncio.TaskGroup() as tasks:
        owned = Owned(served.serve, tasks, fenced_seconds=0.01)
        assigned.assign(owned, {0, 1})
        await eventually(lambda: served.now == {0, 1})
        assigned.assign(owned, {1, 2})
        await eventually(lambda: served.begun == [0, 1, 2])
        now = set(served.now)
        end_all()

    assert now == {1, 2}
    assert served.begun == [0, 1, 2]


async def test_partition_that_is_handed_over_is_served_until_its_server_returns() -> None:
    """And anew if it was assigned here again meanwhile, however late it came back."""
    begun, handed_over = 0, asyncio.Event()
    assigned = Assigned()

    async def serve(partition: int) -> None:
        nonlocal begun
        begun += 1
        await owned.change.until(lambda: partition not in owned.assigned)
        await handed_over.wait()

    async with asyncio.TaskGroup() as tasks:
        owned = Owned(serve, tasks, hands_over=True, fenced_seconds=0.01)
        assigned.assign(owned, {0})
        await eventually(lambda: begun == 1)
        assigned.assign(owned, set())
        await asyncio.sleep(0)
        assert serving()
        assigned.assign(owned, {0})
        handed_over.set()
        await eventually(lambda: begun == 2)
        assigned.assign(owned, set())
        await eventually(lambda: not serving())

    assert begun == 2


async def test_partition_that_comes_back_after_it_was_fenced_elsewhere_is_served_again() -> None:
    """Its earlier task has ended by then."""
    begun = 0

    async def serve(_: int) -> None:
        nonlocal begun
        begun += 1
        if begun == 1:
            await fenced.wait()
            msg = "sessions-0"
            raise Fenced(msg)
        await asyncio.Event().wait()

    assigned, fenced = Assigned(), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        owned = Owned(serve, tasks, hands_over=True, fenced_seconds=0.01)
        assigned.assign(owned, {0})
        await eventually(lambda: begun == 1)
        assigned.assign(owned, set())
        fenced.set()
        await eventually(lambda: not serving())
        assert begun == 1
        assigned.assign(owned, {0})
        await eventually(lambda: begun == 2)
        end_all()

    assert begun == 2


async def test_fenced_member_takes_nothing_while_the_group_rebalances() -> None:
    """Another may own the partition already, and must not be fenced by who owned it before."""
    begun = 0

    async def serve(_: int) -> None:
        nonlocal begun
        begun += 1
        if begun == 1:
            assigned.dividing = True  # a rebalance began; `assign` is called at its end
            msg = "sessions-0"
            raise Fenced(msg)
        await asyncio.Event().wait()

    assigned = Assigned()
    async with asyncio.TaskGroup() as tasks:
        owned = Owned(serve, tasks, fenced_seconds=0.01)
        assigned.assign(owned, {0})
        await eventually(lambda: begun == 1 and not serving())
        begun_meanwhile = begun
        assigned.assign(owned, {0})
        await eventually(lambda: begun == 2)
        end_all()

    assert (begun_meanwhile, begun) == (1, 2)
