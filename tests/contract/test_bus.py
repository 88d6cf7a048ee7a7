"""The promises of every bus, tested on both."""

import abc
import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from tests.support.waiting import until

from evener.bus.embedded import open_embedded
from evener.bus.kafka import open_kafka
from evener.bus.port import MAX_RECORD_BYTES, Bus, Fenced, GroupOffset, Header, Outgoing, Position, Reader, Record, RecordTooLarge
from evener.proto.errors import ConfigError
from evener.proto.topics import TOPICS, Topic

CALLS = Topic.SESSIONS
FEW = {name: TOPICS[name] for name in (Topic.SESSIONS, Topic.BUILT, Topic.POLICIES)}
OpenWith = Callable[[int], AbstractAsyncContextManager[Bus]]


def record(value: bytes | None, *, key: str = "s1", topic: Topic = CALLS, partition: int | None = 0) -> Outgoing:
    return Outgoing(topic=topic, key=key, value=value, partition=partition)


async def values(bus: Bus, topic: Topic = CALLS, partition: int = 0, start: int = 0) -> list[bytes | None]:
    async with asyncio.timeout(60):
        return [found.value async for found in bus.read(topic, partition, start)]


async def take_over(bus: Bus, *transactional_ids: str) -> None:
    """From here on all that these ids committed can be read; on Kafka a commit is visible only a moment after it returned."""
    for transactional_id in transactional_ids or ("gateway-0",):
        await (await bus.producer(transactional_id)).aclose()


async def followed(batches: AsyncIterator[Sequence[Record]], count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    async with asyncio.timeout(60):
        async for batch in batches:
            assert batch
            found += [item.value for item in batch]
            if len(found) >= count:
                break
    return found


async def lag_is(bus: Bus, records: int) -> None:
    """Wait until the only named follower is so far behind: its consumer passes a marker a moment after the record."""
    await until(bus.lags, lambda lags: [lag.records for lag in lags] == [records])


class BusContract(abc.ABC):
    """A subclass only says how to open one, twice the same if asked twice."""

    @abc.abstractmethod
    def opener(self, tmp_path: Path, request: pytest.FixtureRequest) -> OpenWith: ...

    @pytest.fixture
    def open_with(self, tmp_path: Path, request: pytest.FixtureRequest) -> OpenWith:
        return self.opener(tmp_path, request)

    @pytest.fixture
    async def bus(self, open_with: OpenWith) -> AsyncIterator[Bus]:
        async with open_with(4) as bus:
            yield bus

    async def test_record_comes_back_as_it_was_sent(self, bus: Bus) -> None:
        """Key, value, headers and place survive; the time is that of writing."""
        sent = Outgoing(topic=CALLS, key="s7", value=b"opened", headers=(Header("evener-type", b"call_opened.v1"),))
        before = time.time()
        (position,) = await bus.send([sent])

        (found,) = [item async for item in bus.read(CALLS, position.partition)]
        assert position == Position(CALLS, bus.partition_of(CALLS, "s7"), found.offset)
        assert (found.key, found.value, found.headers) == (sent.key, sent.value, sent.headers)
        assert before - 1 <= found.timestamp_ms / 1000 <= time.time() + 1

    async def test_record_time_rises_with_the_offset(self, bus: Bus) -> None:
        """However a record was written, a later append is not earlier in the log."""
        producer = await bus.producer("gateway-0")
        for number in range(5):
            await bus.send([record(b"%d" % number)])
            await producer.commit([record(b"%d" % number), record(b"%d" % number)])

        await take_over(bus)
        times = [found.timestamp_ms async for found in bus.read(CALLS, 0)]
        assert len(times) == 15
        assert times == sorted(times)

    async def test_records_of_one_key_are_read_in_the_order_of_their_commits(self, bus: Bus) -> None:
        """Two calls of one session never change places, however they are written."""
        producer = await bus.producer("gateway-0")
        await bus.send([record(b"0")])
        await producer.commit([record(b"1"), record(b"2")])
        await asyncio.gather(*(producer.commit([record(b"%d" % number)]) for number in range(3, 40)))
        await bus.send([record(b"40")])

        await take_over(bus)
        assert await values(bus) == [b"%d" % number for number in range(41)]

    async def test_keys_are_spread_over_all_partitions(self, bus: Bus) -> None:
        """A session's partition follows from its id, and no partition stays empty."""
        assert bus.partitions_of(CALLS) == 4
        assert bus.partitions_of(Topic.POLICIES) == 1
        assert {bus.partition_of(CALLS, f"task.{number}") for number in range(64)} == {0, 1, 2, 3}

    async def test_commit_returns_the_position_of_each_record(self, bus: Bus) -> None:
        """A capability names the offset of SessionStarted."""
        producer = await bus.producer("gateway-0")
        positions = await producer.commit([record(b"a"), record(b"b", partition=1), record(b"c")])

        await take_over(bus)
        assert [(position.topic, position.partition) for position in positions] == [(CALLS, 0), (CALLS, 1), (CALLS, 0)]
        assert await values(bus, partition=0, start=positions[2].offset) == [b"c"]

    async def test_records_and_offsets_are_committed_together(self, bus: Bus) -> None:
        """Consume, transform, produce: the outputs of a group and its place in the input are one step."""
        producer = await bus.producer("bridge-0")
        offsets = [GroupOffset("bridge", Position(CALLS, 0, 17)), GroupOffset("bridge", Position(CALLS, 1, 3))]
        await producer.commit([record(b"merged", topic=Topic.BUILT)], offsets)

        await take_over(bus, "bridge-0")
        assert await values(bus, Topic.BUILT) == [b"merged"]
        assert await bus.committed("bridge", CALLS, 0) == 17
        assert await bus.committed("bridge", CALLS, 1) == 3
        assert await bus.committed("bridge", CALLS, 2) is None

    async def test_offsets_alone_can_be_committed(self, bus: Bus) -> None:
        """A reader that only skips still moves on, in its transaction or without one."""
        producer = await bus.producer("bridge-0")
        await producer.commit([], [GroupOffset("bridge", Position(CALLS, 0, 5))])
        await take_over(bus, "bridge-0")
        assert await bus.committed("bridge", CALLS, 0) == 5

        await bus.commit_offsets([GroupOffset("builders", Position(CALLS, 0, 8)), GroupOffset("builders", Position(CALLS, 1, 9))])
        await bus.commit_offsets([GroupOffset("builders", Position(CALLS, 2, 10))])
        assert [await bus.committed("builders", CALLS, number) for number in range(4)] == [8, 9, 10, None]

    async def test_concurrent_commits_of_two_groups_all_count(self, bus: Bus) -> None:
        """Offsets of different groups may meet in the queue, not in one call."""
        producer = await bus.producer("bridge-0")
        groups = ["a", "b", "a", "b"]
        await asyncio.gather(
            *(producer.commit([record(b"x")], [GroupOffset(group, Position(CALLS, number, 1))]) for number, group in enumerate(groups))
        )
        await take_over(bus, "bridge-0")
        assert [await bus.committed(group, CALLS, number) for number, group in enumerate(groups)] == [1, 1, 1, 1]
        with pytest.raises(ValueError, match="one group"):
            await producer.commit([], [GroupOffset(group, Position(CALLS, 0, 1)) for group in "ab"])

    async def test_zombie_cannot_commit_after_a_take_over(self, bus: Bus) -> None:
        """What a fenced owner writes is read by nobody, records and offsets alike; its successor goes on."""
        zombie = await bus.producer("gateway-0")
        await zombie.commit([record(b"before")])
        successor = await bus.producer("gateway-0")

        with pytest.raises(Fenced):
            await zombie.commit([record(b"zombie")], [GroupOffset("g", Position(CALLS, 0, 99))])
        await successor.commit([record(b"after")])
        with pytest.raises(Fenced):
            await zombie.commit([record(b"zombie again")])

        await take_over(bus)
        assert await values(bus) == [b"before", b"after"]
        assert await bus.committed("g", CALLS, 0) is None

    async def test_epoch_rises_with_each_holder_of_an_id(self, bus: Bus) -> None:
        """So that whoever hears of two owners knows which is the later."""
        holders = [await bus.producer("gateway-0") for _ in range(3)]

        assert holders[0].epoch < holders[1].epoch < holders[2].epoch

    async def test_zombie_in_another_process_cannot_commit(self, bus: Bus) -> None:
        """A take-over fences whoever held the id, busy or idle, many commits at once included."""
        zombie = await bus.producer("gateway-0")
        successor = await bus.producer("gateway-0")

        outcomes = await asyncio.gather(*(zombie.commit([record(b"z")]) for _ in range(20)), return_exceptions=True)
        await successor.commit([record(b"mine")])

        await take_over(bus)
        assert {type(outcome) for outcome in outcomes} == {Fenced}
        assert await values(bus) == [b"mine"]

    async def test_producers_of_different_ids_do_not_disturb_each_other(self, bus: Bus) -> None:
        """A gateway owns many partitions, each by an id of its own."""
        producers = [await bus.producer(f"gateway-{number}") for number in range(4)]
        await asyncio.gather(
            *(producer.commit([record(b"x", partition=number)]) for number, producer in enumerate(producers) for _ in range(5))
        )
        await take_over(bus, *(f"gateway-{number}" for number in range(4)))
        for number in range(4):
            assert await values(bus, partition=number) == [b"x"] * 5

    async def test_let_go_id_can_be_taken_again(self, bus: Bus) -> None:
        """A partition that comes back is served again by the same instance."""
        first = await bus.producer("gateway-0")
        await first.commit([record(b"1")])
        await first.aclose()
        second = await bus.producer("gateway-0")
        await second.commit([record(b"2")])

        await take_over(bus)
        assert await values(bus) == [b"1", b"2"]

    async def test_oversize_record_fails_alone(self, bus: Bus) -> None:
        """A call that cannot be stored does not take its neighbours with it."""
        producer = await bus.producer("gateway-0")
        large = bytes(MAX_RECORD_BYTES + 1)
        commits = [producer.commit([record(b"%d" % number)]) for number in range(5)]
        commits.insert(2, producer.commit([record(b"with it"), record(large)]))
        outcomes = await asyncio.gather(*commits, return_exceptions=True)

        await take_over(bus)
        assert isinstance(outcomes.pop(2), RecordTooLarge)
        assert not [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        assert await values(bus) == [b"0", b"1", b"2", b"3", b"4"]
        with pytest.raises(RecordTooLarge):
            await bus.send([record(large)])
        await bus.send([record(bytes(MAX_RECORD_BYTES - 100))])

    async def test_commit_to_a_place_that_does_not_exist_writes_nothing(self, bus: Bus) -> None:
        """The caller that made a mistake gets the error, and its neighbours do not notice."""
        producer = await bus.producer("gateway-0")
        wrong = [record(b"x", topic=Topic.FLEET), record(b"x", partition=4)]
        commits = [producer.commit([record(b"with it"), one]) for one in wrong]
        outcomes = await asyncio.gather(producer.commit([record(b"0")]), *commits, producer.commit([record(b"1")]), return_exceptions=True)

        assert [type(outcome) for outcome in outcomes] == [tuple, ValueError, ValueError, tuple]
        for mistake in (bus.send(wrong), bus.commit_offsets([GroupOffset("g", Position(CALLS, 9, 1))])):
            with pytest.raises(ValueError, match="there is no partition"):
                await mistake
        await take_over(bus)
        assert await values(bus) == [b"0", b"1"]

    async def test_many_commits_at_once_each_return_their_own_positions(self, bus: Bus) -> None:
        """Commits share a transaction; each gets the positions of its own records."""
        producer = await bus.producer("gateway-0")
        numbers = range(300)
        positions = await asyncio.gather(*(producer.commit([record(b"%d" % number, partition=number % 4)]) for number in numbers))

        await take_over(bus)
        by_place = {(found.partition, found.offset): found.value for part in range(4) async for found in bus.read(CALLS, part)}
        assert len(by_place) == 300
        for number, (position,) in zip(numbers, positions, strict=True):
            assert by_place[position.partition, position.offset] == b"%d" % number

    async def test_reading_stops_at_the_end(self, bus: Bus) -> None:
        """Also where nothing stands, after a commit's marker, and where reading starts at or behind the end."""
        assert await values(bus) == []
        for number in range(3):
            producer = await bus.producer("gateway-0")
            await producer.commit([record(b"%d" % number)])
            await take_over(bus)
            assert len(await values(bus)) == number + 1
        end = await bus.end(CALLS, 0)
        assert await values(bus, start=end) == []
        assert await values(bus, start=end + 5) == []
        assert await bus.beginning(CALLS, 0) == 0

    async def test_end_rises_with_every_commit(self, bus: Bus) -> None:
        """An owner that waits until its tail has passed an offset waits for something that comes."""
        assert await bus.end(CALLS, 0) == 0
        producer = await bus.producer("gateway-0")
        (position,) = await producer.commit([record(b"a")])
        await take_over(bus)
        assert await bus.end(CALLS, 0) > position.offset

    async def test_following_gets_everything_once_across_many_commits(self, bus: Bus) -> None:
        """What stood there before, and what comes while it waits; in order, nothing twice."""
        producer = await bus.producer("gateway-0")
        await producer.commit([record(b"0"), record(b"1")])
        reading = asyncio.create_task(followed(bus.follow(CALLS, 0, 0), 60))
        for number in range(2, 60, 2):
            await producer.commit([record(b"%d" % number)])
            await bus.send([record(b"%d" % (number + 1))])

        assert await reading == [b"%d" % number for number in range(60)]

    async def test_following_starts_where_it_is_told(self, bus: Bus) -> None:
        """A group continues after the last record that it has finished."""
        positions = await bus.send([record(b"%d" % number) for number in range(10)])
        assert await followed(bus.follow(CALLS, 0, positions[6].offset), 4) == [b"6", b"7", b"8", b"9"]

    async def test_cancelled_follower_leaves_nothing_behind(self, bus: Bus) -> None:
        """Giving a partition up is a cancellation."""
        first = asyncio.Event()

        async def follow() -> None:
            async for _ in bus.follow(CALLS, 0, 0):
                first.set()

        await bus.send([record(b"a")])
        waiting = asyncio.create_task(follow())
        await first.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await bus.send([record(b"b")])
        assert await followed(bus.follow(CALLS, 0, 0), 2) == [b"a", b"b"]

    async def test_last_values_are_the_newest_of_each_key(self, bus: Bus) -> None:
        """A registry is read as it is now; a deleted key is not in it."""
        producer = await bus.producer("policy-p")
        for key, value in [("a", b"1"), ("b", b"2"), ("a", b"3"), ("c", b"4"), ("c", None)]:
            await producer.commit([record(value, key=key, topic=Topic.POLICIES)])

        await take_over(bus, "policy-p")
        last = await bus.last_values(Topic.POLICIES, 0)
        assert {key: found.value for key, found in last.items()} == {"b": b"2", "a": b"3"}
        with pytest.raises(ValueError, match="not compacted"):
            await bus.last_values(CALLS, 0)

    async def test_cancelled_commit_is_whole_or_absent(self, bus: Bus) -> None:
        """A caller that gives up does not leave half of its records, and nobody else notices."""
        producer = await bus.producer("gateway-0")
        for number in range(10):
            task = asyncio.create_task(producer.commit([record(b"a%d" % number), record(b"b%d" % number, partition=1)]))
            await asyncio.sleep(number * 0.001)  # the fault: given up at another moment each time
            task.cancel()
            await asyncio.wait([task])
        await producer.commit([record(b"last"), record(b"last", partition=1)])

        await take_over(bus)
        first, second = await values(bus), await values(bus, partition=1)
        assert first[-1:] == second[-1:] == [b"last"]
        assert [value and value[1:] for value in first] == [value and value[1:] for value in second]

    async def test_sole_member_is_given_all_partitions(self, bus: Bus) -> None:
        """One instance serves everything, and again after it left."""
        for _ in range(2):
            async with bus.join("gateways", CALLS, "a") as member, asyncio.timeout(60):
                assert await member.changed() == frozenset(range(4))
                assert member.partitions == frozenset(range(4))
        await bus.commit_offsets([GroupOffset("gateways", Position(CALLS, 0, 1))])

    async def test_group_with_a_member_can_commit_offsets(self, bus: Bus) -> None:
        """Groups only divide partitions: whoever reads commits, in a transaction or without."""
        async with bus.join("builders", CALLS, "a") as member, asyncio.timeout(60):
            await member.changed()
            await bus.commit_offsets([GroupOffset("builders", Position(CALLS, 0, 4))])
            producer = await bus.producer("bridge-0")
            await producer.commit([], [GroupOffset("builders", Position(CALLS, 1, 5))])
            await take_over(bus, "bridge-0")
            assert [await bus.committed("builders", CALLS, number) for number in (0, 1)] == [4, 5]

    async def test_everything_is_there_after_a_restart(self, open_with: OpenWith) -> None:
        """Records, offsets, last values; and offsets go on where they were."""
        async with open_with(4) as bus:
            producer = await bus.producer("gateway-0")
            (before,) = await producer.commit([record(b"1")], [GroupOffset("g", Position(CALLS, 0, 1))])
            await bus.send([record(b"v", key="k", topic=Topic.POLICIES)])
        async with open_with(4) as bus:
            producer = await bus.producer("gateway-0")
            (after,) = await producer.commit([record(b"2")])
            assert after.offset > before.offset
            await take_over(bus)
            assert await values(bus) == [b"1", b"2"]
            assert await bus.committed("g", CALLS, 0) == 1
            assert (await bus.last_values(Topic.POLICIES, 0))["k"].value == b"v"

    async def test_another_number_of_partitions_is_refused(self, open_with: OpenWith) -> None:
        """Keys would move, and a session's records would stand in two partitions."""
        async with open_with(4):
            pass
        with pytest.raises(ConfigError, match="4 partitions, not 5"):
            async with open_with(5):
                pass

    async def test_lag_is_what_a_named_follower_has_not_worked_on(self, bus: Bus) -> None:
        """Also after transactions, whose markers are no records; what is handed out counts until the next is asked for."""
        producer = await bus.producer("gateway-0")
        for number in range(3):
            await producer.commit([record(b"%d" % number)])
        batches = bus.follow(CALLS, 0, 0, Reader("reconstructor"))
        unnamed = bus.follow(CALLS, 0, 0)
        for follower in (batches, unnamed):
            assert await followed(follower, 3) == [b"0", b"1", b"2"]
        waiting = asyncio.ensure_future(anext(batches))
        await lag_is(bus, 0)

        await producer.commit([record(b"3"), record(b"4")])
        assert [item.value for item in await waiting] == [b"3", b"4"]
        (lag,) = await bus.lags()
        assert (lag.reader, lag.topic, lag.partition) == ("reconstructor", CALLS, 0)
        assert lag.records >= 2

        waiting = asyncio.ensure_future(anext(batches))
        await lag_is(bus, 0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert await bus.lags() == []

    async def test_lag_counts_from_the_oldest_record_that_is_held(self, bus: Bus) -> None:
        """An evaluator asks for more while gradings are open."""
        held: list[int] = []
        positions = await bus.send([record(b"%d" % number) for number in range(4)])
        batches = bus.follow(CALLS, 0, 0, Reader("evaluator", lambda: min(held, default=None)))
        held.append(positions[1].offset)
        assert len(await followed(batches, 4)) == 4
        waiting = asyncio.ensure_future(anext(batches))
        await lag_is(bus, 3)
        held.clear()
        await lag_is(bus, 0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    async def test_check_returns_while_the_log_can_be_written(self, bus: Bus) -> None:
        """Readiness asks for nothing else."""
        await bus.check()


class TestEmbeddedBus(BusContract):
    def opener(self, tmp_path: Path, request: pytest.FixtureRequest) -> OpenWith:
        del request
        return lambda partitions: open_embedded(tmp_path / "bus", FEW, partitions)


@pytest.mark.kafka
class TestKafkaBus(BusContract):
    def opener(self, tmp_path: Path, request: pytest.FixtureRequest) -> OpenWith:
        del tmp_path
        servers: str = request.getfixturevalue("kafka_servers")
        prefix = f"t{secrets.token_hex(4)}."
        return lambda partitions: open_kafka(servers, FEW, partitions, prefix)
