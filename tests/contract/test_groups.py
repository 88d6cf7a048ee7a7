"""What a trainer may rely on: groups from a position, each once, in the order of its partition; over HTTP and from Kafka."""

import abc
import asyncio
import gc
import json
import subprocess
import sys
import time
import warnings
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy as np
import pytest
from aiohttp import ClientSession
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from structlog.testing import capture_logs
from tests.support.builders import T0, built, ended, group, heartbeat, scored
from tests.support.scheduler import scheduler
from tests.support.service_context import context_on
from tests.support.waiting import eventually

from evener.blobs.open import open_blobs
from evener.blobs.waited import BLOB_TIMINGS
from evener.bus.kafka import open_kafka
from evener.bus.open import open_bus
from evener.bus.port import Bus, Outgoing
from evener.client.client import Client
from evener.client.errors import ClientError, RequestRefused
from evener.client.groups import Group, Groups
from evener.client.run_end import NoGroupDelivered, TaskEnd, check_delivered
from evener.client.sync import connect
from evener.proto.codec import encode
from evener.proto.errors import ConfigError, EvenerError
from evener.proto.reasons import ExclusionReason
from evener.proto.spec import GraderSpec, HarnessSpec, Purpose
from evener.proto.tasks import TaskEnded, TaskOptions, TaskOutcome, TaskSubmitted
from evener.proto.topics import TOPICS, Topic
from evener.proto.trajectories import Accounting, GroupFailed
from evener.service.auth import load_secrets
from evener.service.delivered import PositionUnknown
from evener.service.events import EventLog
from evener.service.listener import Mounts, address_of, bind, listen
from evener.trainer_bridge.config import Config
from evener.trainer_bridge.following import following_routes

SECONDS = 60.0
LONG = ((60_000, 6), (20_000, 4))
"""Turns of a session whose arrays go to the blob store."""


async def deliver(bus: Bus, folder: Path, *names: str, **options: Any) -> None:
    """Write groups as the bridge does."""
    events = EventLog(bus, open_blobs(str(folder / "blobs")))
    for name in names:
        await events.send(Topic.MERGED, name, ended(group(name=name, **options)), group_id=name)


async def fail(bus: Bus, folder: Path, name: str, run_id: str) -> None:
    """Write a group that failed as the bridge does."""
    event = ended([scored(built(name, index, size=2, run_id=run_id), reward=None) for index in range(2)])
    assert isinstance(event, GroupFailed)
    await EventLog(bus, open_blobs(str(folder / "blobs"))).send(Topic.MERGED, name, event, group_id=name)


def recording(run_id: str) -> TaskOptions:
    """Return the options of a task that needs no archive."""
    return TaskOptions(run_id=run_id, harness=HarnessSpec(name="mine", sandbox="none"), grader=GraderSpec(name="none"))


async def first(groups: Groups, count: int, found: list[Group] | None = None) -> list[Group]:
    """Return the next groups; fewer where there are no more. `found` gets each as it comes."""
    found = [] if found is None else found
    async with asyncio.timeout(SECONDS):
        stream = aiter(groups)
        while len(found) < count and (one := await anext(stream, None)) is not None:
            found.append(one)
        await stream.aclose()
    return found


def by_partition(groups: Sequence[Group]) -> dict[int, list[str]]:
    """Return the groups' names, partition by partition."""
    return {number: [one.group_id for one in groups if one.partition == number] for number in {one.partition for one in groups}}


def test_a_run_without_a_group_to_train_ends_with_an_error() -> None:
    """A trainer that was given an evaluation's name gets an error, and does not take an empty result for all groups."""
    with pytest.raises(NoGroupDelivered, match="none of its 1 groups is for training: their purpose is eval"):
        check_delivered("mine", [TaskEnd("a", Purpose.EVAL, TaskOutcome.KEPT, "")])


class GroupsContract(abc.ABC):
    @pytest.fixture
    @abc.abstractmethod
    def bus(self) -> Bus: ...

    @abc.abstractmethod
    def groups(self, source: Any, folder: Path, **options: Any) -> Groups: ...

    @abc.abstractmethod
    async def submitted(self, bus: Bus, source: Any, run_id: str, *names: str) -> None:
        """Let the scheduler take tasks in."""

    @abc.abstractmethod
    async def task_ended(self, bus: Bus, name: str, outcome: TaskOutcome) -> None:
        """Let the scheduler end a task whose group has ended."""

    async def test_reading_again_from_a_saved_position_gives_the_same_groups_in_the_order_of_the_log(
        self, bus: Bus, source: Any, tmp_path: Path
    ) -> None:
        """Wherever a trainer stopped, the groups that it took and those that come afterwards are all groups, each once."""
        names = [f"g{number}" for number in range(9)]
        await deliver(bus, tmp_path, *names)
        everything = await first(self.groups(source, tmp_path, follow=False), 100)
        assert sorted(one.group_id for one in everything) == names

        for stop in range(len(names)):
            before = self.groups(source, tmp_path, follow=False)
            taken = await first(before, stop)
            saved = json.loads(json.dumps(before.position))
            after = await first(self.groups(source, tmp_path, follow=False, start=saved), 100)
            assert by_partition(taken + after) == by_partition(everything)

    async def test_groups_are_typed_rows_with_their_rewards(self, bus: Bus, source: Any, tmp_path: Path) -> None:
        """Arrays of one length, as they were sampled; large ones come from the blob store."""
        await deliver(bus, tmp_path, "long", turns=LONG)
        (found,) = await first(self.groups(source, tmp_path, follow=False), 2)
        row = found.sessions[0].rows[0]
        wanted = np.frombuffer(built("long", 0, turns=LONG).rows[0].ids, np.int32)  # type: ignore[arg-type] # not yet in blobs

        assert [session.reward for session in found.sessions] == [1.0, 0.0, 0.5, 1.0]
        assert np.array_equal(row.ids, wanted)
        assert (row.loss_mask.sum(), np.isfinite(row.logprobs).sum(), (row.versions == 0).sum()) == (10, 10, 10)
        assert row.loss_mask.dtype == np.uint8
        assert row.logprobs.dtype == np.float32
        assert found.event.members[0].session_id == "long.0"

    async def test_a_session_that_is_excluded_is_not_trained(self, bus: Bus, source: Any, tmp_path: Path) -> None:
        """It is named in the event alone."""
        await deliver(bus, tmp_path, "short", rewards=(1.0, None, 0.0))
        (found,) = await first(self.groups(source, tmp_path, follow=False), 2)

        assert [session.session_id for session in found.sessions] == ["short.0", "short.2"]
        assert len(found.event.members) == 3

    async def test_failed_groups_and_bad_records_are_passed_over(self, bus: Bus, source: Any, tmp_path: Path) -> None:
        """And the position is after them."""
        events = EventLog(bus, open_blobs(str(tmp_path / "blobs")))
        failed = ended([scored(built("g", index, size=2), reward=None) for index in range(2)])
        assert isinstance(failed, GroupFailed)
        partition = bus.partition_of(Topic.MERGED, "g")
        await events.send(Topic.MERGED, "g", failed)
        await bus.send([Outgoing(topic=Topic.MERGED, key="g", value=b"rubbish", partition=partition)])
        await deliver(bus, tmp_path, "g")
        groups = self.groups(source, tmp_path)
        found = await first(groups, 1)

        assert [one.group_id for one in found] == ["g"]
        assert groups.position == {str(partition): found[0].offset + 1}
        assert (groups.failed, groups.unread) == (1, 1)

    async def test_a_group_whose_arrays_are_gone_is_passed_over_and_comes_when_it_is_replayed(
        self, bus: Bus, source: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """One lost blob does not stop a trainer. The log says which group it was, and how it is brought back."""
        await deliver(bus, tmp_path, "g", turns=LONG)
        await deliver(bus, tmp_path, "g")
        partition = bus.partition_of(Topic.MERGED, "g")
        lost, kept = [record async for record in bus.read(Topic.MERGED, partition)]
        arrays = {path: path.read_bytes() for path in (tmp_path / "blobs").rglob("*") if path.is_file()}
        for path in arrays:
            path.unlink()
        groups = self.groups(source, tmp_path, follow=False)
        with capture_logs() as said:
            assert [one.offset for one in await first(groups, 9)] == [kept.offset]
        told = [line["replay"] for line in said if line["event"] == "bad_group_skipped"]
        assert told == [f"evener dead-letters replay {Topic.MERGED}/{partition}@{lost.offset}"]
        assert groups.unread == 1
        assert told[0] in caplog.text  # the trainer is told, wherever the server is

        for path, data in arrays.items():
            path.write_bytes(data)
        again = Outgoing(topic=lost.topic, key=lost.key, value=lost.value, headers=lost.headers, partition=partition)
        (replayed,) = await bus.send([again])
        assert [one.offset for one in await first(groups, 9)] == [replayed.offset]

    async def test_a_group_whose_arrays_cannot_be_read_now_is_not_passed_over(self, bus: Bus, source: Any, tmp_path: Path) -> None:
        """The blob store is away for a while: the reader waits, and goes on by itself."""
        await deliver(bus, tmp_path, "g", turns=LONG)
        await deliver(bus, tmp_path, "g")
        arrays = {path: path.read_bytes() for path in (tmp_path / "blobs").rglob("*") if path.is_file()}
        for path in arrays:
            path.unlink()
            path.mkdir()
        groups = self.groups(source, tmp_path, follow=False)
        reading = asyncio.create_task(first(groups, 2))
        await asyncio.sleep(BLOB_TIMINGS.answer_seconds + 1.0)  # longer than an endpoint waits
        assert not reading.done()
        assert groups.position == {}

        for path, data in arrays.items():
            path.rmdir()
            path.write_bytes(data)
        assert [one.offset for one in await reading] == [0, 1]

    async def test_failed_groups_are_counted_and_told_with_their_reasons(
        self, bus: Bus, source: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A trainer that waits knows why. Those of other runs are not its own."""
        for name, run_id in (("a", "mine"), ("b", "mine"), ("c", "other")):
            await fail(bus, tmp_path, name, run_id)
        groups = self.groups(source, tmp_path, run_id="mine", follow=False)
        told: list[GroupFailed] = []
        heard = self.groups(source, tmp_path, run_id="mine", follow=False, on_failed=told.append)
        assert (await first(groups, 9), await first(heard, 9)) == ([], [])

        assert (groups.failed, heard.failed) == (2, 2)
        assert sorted(event.group_id for event in told) == ["a", "b"]
        logged = [record.getMessage() for record in caplog.records if record.name == "evener.client.groups"]
        assert sorted(line[:15] for line in logged) == ["group a failed:", "group b failed:"]
        assert "2 ungraded (the grader gave no reward)" in caplog.text

    async def test_a_group_without_a_token_to_train_is_reported(
        self, bus: Bus, source: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It comes, for its place in the log; a trainer that learns nothing knows why."""
        books = Accounting(sampled=10, excluded={ExclusionReason.CONSTRAINED: 10})
        await deliver(bus, tmp_path, "empty", given={"rows": (), "accounting": books})
        await deliver(bus, tmp_path, "full")
        groups = await first(self.groups(source, tmp_path, follow=False), 9)

        assert {one.group_id: len(list(one.rows)) for one in groups} == {"empty": 0, "full": 4}
        logged = [record.getMessage() for record in caplog.records if record.name == "evener.client.groups"]
        assert logged == ["group empty has no token to train: 40 constrained"]

    async def test_groups_of_a_run_end_when_the_run_is_over(self, bus: Bus, source: Any, tmp_path: Path) -> None:
        """Its last groups are delivered before, and given. A group that comes late is waited for, and other runs end nothing."""
        await self.submitted(bus, source, "mine", "a", "b", "c")
        await self.submitted(bus, source, "other", "d")
        await deliver(bus, tmp_path, "d", run_id="other")
        await self.task_ended(bus, "d", TaskOutcome.MERGED)
        await deliver(bus, tmp_path, "a", run_id="mine")
        taken: list[Group] = []
        taking = asyncio.ensure_future(first(self.groups(source, tmp_path, run_id="mine"), 9, taken))
        await self.task_ended(bus, "a", TaskOutcome.MERGED)
        await fail(bus, tmp_path, "b", "mine")
        await self.task_ended(bus, "b", TaskOutcome.FAILED)
        await eventually(lambda: taken)
        assert not taking.done()
        await deliver(bus, tmp_path, "c", run_id="mine")
        await self.task_ended(bus, "c", TaskOutcome.MERGED)

        assert sorted(one.group_id for one in await taking) == ["a", "c"]
        assert sorted(one.group_id for one in await first(self.groups(source, tmp_path, run_id="mine"), 9)) == ["a", "c"]

    async def test_a_run_of_which_no_group_is_delivered_ends_with_an_error(self, bus: Bus, source: Any, tmp_path: Path) -> None:
        """A trainer does not wait for ever for what will never come."""
        await self.submitted(bus, source, "mine", "a", "b")
        waiting = asyncio.ensure_future(first(self.groups(source, tmp_path, run_id="mine"), 1))
        for name in ("a", "b"):
            await fail(bus, tmp_path, name, "mine")
            await self.task_ended(bus, name, TaskOutcome.FAILED)

        with pytest.raises(NoGroupDelivered, match="run mine is over, and none of its 2 groups was delivered; a: "):
            await waiting

    async def test_groups_of_other_runs_are_passed_over(self, bus: Bus, source: Any, tmp_path: Path) -> None:
        await deliver(bus, tmp_path, "other", given=None, run_id="another")
        await deliver(bus, tmp_path, "mine", run_id="mine")

        assert [one.group_id for one in await first(self.groups(source, tmp_path, run_id="mine", follow=False), 9)] == ["mine"]

    async def test_groups_of_other_policies_are_passed_over(
        self, bus: Bus, source: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Who trains one policy of several never sees another's tokens, and who misspelt its name hears that."""
        await deliver(bus, tmp_path, "other", "another", policy="critic")
        await deliver(bus, tmp_path, "mine", policy="actor")

        assert [one.group_id for one in await first(self.groups(source, tmp_path, policy="actor", follow=False), 9)] == ["mine"]
        assert caplog.text.count("skipping groups of policy critic: only those of actor were requested") == 1

    async def test_groups_come_as_they_are_delivered(self, bus: Bus, source: Any, tmp_path: Path) -> None:
        """Whoever waits at the end of the log gets the next one."""
        taken: list[Group] = []
        waiting = asyncio.ensure_future(first(self.groups(source, tmp_path), 3, taken))
        await deliver(bus, tmp_path, "early")
        await eventually(lambda: taken)
        await deliver(bus, tmp_path, "later", "last")

        assert sorted(one.group_id for one in await waiting) == ["early", "last", "later"]

    async def test_a_position_of_another_log_is_refused(self, bus: Bus, source: Any, tmp_path: Path) -> None:
        """It would wait for ever, or leave groups out, and say nothing."""
        await deliver(bus, tmp_path, "g")
        for wrong in ({"0": 1000}, {"17": 0}):
            with pytest.raises((RequestRefused, PositionUnknown), match=r"before the position|no number 17"):
                await first(self.groups(source, tmp_path, start=wrong), 1)


class TestOverHttp(GroupsContract):
    @pytest.fixture
    async def bus(self, tmp_path: Path) -> AsyncIterator[Bus]:
        async with open_bus(f"embedded:{tmp_path / 'bus'}", partitions=3) as opened:
            yield opened

    @pytest.fixture
    async def source(self, bus: Bus, tmp_path: Path) -> AsyncIterator[Client]:
        async with scheduler(bus, tmp_path) as client, following(bus, tmp_path):
            yield client

    def groups(self, source: Any, folder: Path, **options: Any) -> Groups:
        assert folder.exists()
        return Groups(source, **options)

    async def submitted(self, bus: Bus, source: Any, run_id: str, *names: str) -> None:  # noqa: ARG002 - the contract's
        for name in names:
            await source.submit(recording(run_id), task_id=name)

    async def task_ended(self, bus: Bus, name: str, outcome: TaskOutcome) -> None:
        """The scheduler reads of the group's end itself."""

    async def test_readers_that_never_read_leave_room_for_no_more_than_the_limit(self, bus: Bus, tmp_path: Path) -> None:
        """Each costs the loop work and memory for every group; one that leaves makes room for the next."""
        token = load_secrets(tmp_path).operator_token
        async with following(bus, tmp_path, followers=2) as url, ClientSession(headers={"authorization": f"Bearer {token}"}) as http:
            readers = [await http.get(f"{url}/groups/follow") for _ in range(2)]
            assert [reader.status for reader in readers] == [200, 200]
            async with http.get(f"{url}/groups/follow") as refused:
                assert (refused.status, refused.headers["retry-after"]) == (503, "2")
                assert "serves 2 readers of groups at a time" in (await refused.json())["error"]["message"]
            readers[0].close()
            async with asyncio.timeout(SECONDS):
                while (again := await http.get(f"{url}/groups/follow")).status == 503:
                    again.release()
            assert again.status == 200
            readers[1].close()
            again.close()

    async def test_a_bridge_that_comes_again_is_read_on_where_it_stopped(self, bus: Bus, tmp_path: Path) -> None:
        """The trainer does not notice."""
        async with scheduler(bus, tmp_path) as client:
            stream = aiter(Groups(client))
            async with following(bus, tmp_path):
                await deliver(bus, tmp_path, "a")
                assert (await anext(stream)).group_id == "a"
            await deliver(bus, tmp_path, "b")
            async with following(bus, tmp_path), asyncio.timeout(SECONDS):
                assert (await anext(stream)).group_id == "b"
            await stream.aclose()

    async def test_a_trainer_without_an_event_loop_reads_the_same(self, bus: Bus, source: Client, tmp_path: Path) -> None:
        await deliver(bus, tmp_path, *(f"g{number}" for number in range(5)))
        everything = await first(Groups(source, follow=False), 9)

        def train() -> tuple[list[str], list[str]]:
            with connect(source._connection.url, load_secrets(tmp_path).operator_token) as evener:
                groups = evener.groups(follow=False)
                begun = [next(groups).group_id for _ in range(2)]
                groups.close()
                return begun, [one.group_id for one in evener.groups(start=groups.position, follow=False)]

        begun, rest = await asyncio.to_thread(train)
        assert sorted(begun + rest) == sorted(one.group_id for one in everything)

    async def test_a_trainer_without_an_event_loop_gets_the_groups_of_its_run_and_policy_alone(
        self, bus: Bus, source: Client, tmp_path: Path
    ) -> None:
        for run_id, policy in (("theirs", "actor"), ("mine", "critic"), ("mine", "actor")):
            await deliver(bus, tmp_path, f"{run_id}-{policy}", run_id=run_id, policy=policy)

        def train() -> list[str]:
            with connect(source._connection.url, load_secrets(tmp_path).operator_token) as evener:
                return [one.group_id for one in evener.groups(run_id="mine", policy="actor", follow=False)]

        assert await asyncio.to_thread(train) == ["mine-actor"]

    async def test_a_trainer_that_ends_in_mid_stream_ends_quietly(
        self, bus: Bus, source: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Its last word is its own, and no complaint of a stream that nobody closed."""
        await deliver(bus, tmp_path, *(f"g{number}" for number in range(5)))

        def train() -> None:
            with connect(source._connection.url, load_secrets(tmp_path).operator_token) as evener:
                next(evener.groups())

        await asyncio.to_thread(train)
        assert not caplog.records

    async def test_a_source_that_is_neither_is_refused(self) -> None:
        with pytest.raises(ClientError, match="from a client or from kafka"):
            await first(Groups("redis://here"), 1)


@asynccontextmanager
async def following(bus: Bus, folder: Path, followers: int = 9) -> AsyncIterator[str]:
    """Serve the bridge's endpoint, and say in the fleet where; yield its address."""
    config = Config(state=str(folder), followers=followers)
    listening = bind(config)
    address = address_of(config, listening)
    context = context_on(bus, folder, instance_id="bridge", address=address)
    mounts = Mounts()
    async with listen(mounts, listening):
        mounts.replace(following_routes(context, config.followers))
        sign = heartbeat("trainer_bridge", "bridge", at=time.time(), address=address)
        await EventLog(bus, context.blobs).send(Topic.FLEET, "bridge", sign)
        yield address


def collect_connections() -> None:
    """aiokafka forgets a connection that it opens while its consumer is stopped: let go of it here, so that no other test is blamed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(autouse=True, scope="module")
def after_all() -> Iterator[None]:
    yield
    collect_connections()


@pytest.mark.kafka
class TestFromKafka(GroupsContract):
    @pytest.fixture(autouse=True)
    def before_each(self) -> None:
        collect_connections()

    @pytest.fixture
    def source(self, kafka_servers: str) -> str:
        return f"kafka://{kafka_servers}?prefix=t{token_hex(4)}."

    @pytest.fixture
    async def bus(self, source: str) -> AsyncIterator[Bus]:
        servers, _, prefix = source.removeprefix("kafka://").partition("?prefix=")
        async with open_kafka(servers, {name: TOPICS[name] for name in (Topic.MERGED, Topic.TASKS)}, 3, prefix) as opened:
            yield opened

    def groups(self, source: Any, folder: Path, **options: Any) -> Groups:
        return Groups(source, blobs=str(folder / "blobs"), **options)

    async def submitted(self, bus: Bus, source: Any, run_id: str, *names: str) -> None:  # noqa: ARG002 - the contract's
        for name in names:
            event = TaskSubmitted(task_id=name, task=None, options=recording(run_id), submitted_at=T0)
            await bus.send([Outgoing(topic=Topic.TASKS, key=name, value=encode(event))])

    async def task_ended(self, bus: Bus, name: str, outcome: TaskOutcome) -> None:
        event = TaskEnded(task_id=name, outcome=outcome, ended_at=T0)
        await bus.send([Outgoing(topic=Topic.TASKS, key=name, value=encode(event))])

    async def test_a_position_before_what_the_log_still_keeps_is_refused(self, bus: Bus, source: str, tmp_path: Path) -> None:
        """The broker would begin later and say nothing: groups that the trainer has not seen were dropped by the retention."""
        names = [f"g{number}" for number in range(9)]
        await deliver(bus, tmp_path, *names)
        everything = await first(self.groups(source, tmp_path, follow=False), 100)
        partition = everything[0].partition
        second = [one for one in everything if one.partition == partition][1]
        await drop_before(source, partition, second.offset)

        with pytest.raises(PositionUnknown, match=rf"partition {partition} begins at {second.offset}, after the position 0"):
            await first(self.groups(source, tmp_path, follow=False, start={str(partition): 0}), 1)
        kept = await first(self.groups(source, tmp_path, follow=False, start={str(partition): second.offset}), 100)
        assert len(kept) == len(names) - 1
        assert len(await first(self.groups(source, tmp_path, follow=False), 100)) == len(names) - 1

    async def test_blobs_and_topic_must_be_there(self, source: str, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="where the deployment's blobs are"):
            await first(Groups(source), 1)
        with pytest.raises(EvenerError, match="there is no topic"):
            await first(self.groups(source, tmp_path), 1)


async def drop_before(source: str, partition: int, offset: int) -> None:
    """Let the broker drop the records of `trajectories.merged` before an offset, as its retention does."""
    servers, _, prefix = source.removeprefix("kafka://").partition("?prefix=")
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    try:
        await admin.delete_records({TopicPartition(prefix + Topic.MERGED, partition): RecordsToDelete(before_offset=offset)})
    finally:
        await admin.close()


def test_a_trainer_imports_nothing_heavy() -> None:
    """It has its own torch, and its own versions of everything."""
    asking = "import sys, evener.client.groups, evener.client.sync; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    told = subprocess.run((sys.executable, "-c", asking), capture_output=True, text=True, check=True).stdout.split()

    heavy = {"torch", "transformers", "tokenizers", "aiokafka", "obstore", "starlette", "uvicorn", "structlog", "opentelemetry", "jinja2"}
    assert not heavy & set(told)
    assert {"aiohttp", "msgspec", "numpy"} <= set(told)
