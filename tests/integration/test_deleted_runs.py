"""Runs that are deleted: what goes with them, what stays, and what waits. A real scheduler, and a hand that plays the other services."""

import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import msgspec
import pytest
from msgspec import structs
from tests.support.builders import built, scored
from tests.support.other_services import OtherServices
from tests.support.scheduler import scheduler
from tests.support.waiting import until
from tests.unit.proto.golden_events import EVENTS

from evener.blobs.open import open_blobs
from evener.blobs.port import Blobs
from evener.bus.open import open_bus
from evener.bus.port import Bus, GroupOffset, Header, Outgoing, Position
from evener.client.client import Client
from evener.client.errors import RequestRefused
from evener.evaluator.groups import GROUP as GROUPS
from evener.evaluator.service import GROUP as EVALUATOR
from evener.proto.blobs import INLINE_LIMIT_BYTES, BlobRef
from evener.proto.codec import encode
from evener.proto.reasons import ExitCause
from evener.proto.sessions import Artifact, CallOpened
from evener.proto.spec import GraderSpec, HarnessSpec
from evener.proto.state import DeletedTask
from evener.proto.tasks import TaskDeleted, TaskOptions, TaskSubmitted
from evener.proto.topics import HEADER_CLAIM, HEADER_SESSION, Topic
from evener.proto.trajectories import HarnessExit, TrajectoryScored
from evener.provider_gateway.partition import GROUP as GATEWAY
from evener.reconstructor.partition import GROUP as RECONSTRUCTOR
from evener.scheduler.sweep import READERS, Sweeper, Swept
from evener.tasks.directory import bundled, find
from evener.tasks.pack import pack
from evener.trainer_bridge.merging import GROUP as BRIDGE

PACKED: Final = pack(find(bundled())[0])
ALL: Final = {"old.1", "old.2"}
"""The ids of the deleted tasks of these tests."""


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
async def bus(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Bus]:
    url = f"embedded:{tmp_path / 'bus'}"
    if request.param == "kafka":
        url = f"kafka://{request.getfixturevalue('kafka_servers')}?prefix=del{secrets.token_hex(4)}."
    async with open_bus(url, partitions=2) as opened:
        yield opened


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return open_blobs(str(tmp_path / "blobs"))


@pytest.fixture
def others(bus: Bus, blobs: Blobs) -> OtherServices:
    return OtherServices(bus, blobs)


def options(run_id: str) -> TaskOptions:
    return TaskOptions(run_id=run_id, samples=1, harness=HarnessSpec(name="script"), grader=GraderSpec(name="none"))


async def submit(client: Client, task_id: str, run_id: str) -> None:
    """Submit the same task, under an id and a run."""
    await client.put_blob(PACKED.data)
    await client.submit(options(run_id), task=PACKED.ref, task_id=task_id)


async def leave(others: OtherServices, blobs: Blobs, task_id: str, content: bytes) -> BlobRef:
    """Leave an artifact of a task's session; return its reference."""
    ref = await blobs.put(content)
    await others.exited(f"{task_id}.0", artifacts=(Artifact(name="harness.log", blob=ref),))
    return ref


async def end(client: Client, others: OtherServices, task_id: str) -> None:
    """End a task with its one session."""
    await others.sealed(f"{task_id}.0")
    await others.group_ended(task_id, 1)
    await until(lambda: client.task(task_id), lambda detail: detail.task.outcome is not None and detail.task.stages == {"sealed": 1})


async def passed(bus: Bus, group: str, topic: Topic) -> None:
    """Let a group have read a topic to its end."""
    for partition in range(bus.partitions_of(topic)):
        await bus.commit_offsets([GroupOffset(group, Position(topic, partition, await bus.end(topic, partition)))])


async def sweep(bus: Bus, blobs: Blobs, *due: str) -> Swept:
    return await Sweeper(bus, blobs).sweep(set(due), ALL, unused_seconds=0.0)


async def test_deleted_run_is_gone_and_its_ids_are_not_used_again(bus: Bus, others: OtherServices, tmp_path: Path) -> None:
    """Its sessions have ended for good, so a task of the same id would never run. An open run is refused."""
    async with scheduler(bus, tmp_path) as client:
        await submit(client, "old.1", "old")
        await submit(client, "old.2", "old")
        await submit(client, "new.1", "new")
        await end(client, others, "old.1")
        with pytest.raises(RequestRefused, match="has not ended: cancel it"):
            await client.delete_run("old")
        await end(client, others, "old.2")
        with pytest.raises(RequestRefused, match="no run other"):
            await client.delete_run("other")
        assert (await client.delete_run("old")).tasks == 2

        assert [view.task_id for view in await client.tasks()] == ["new.1"]
        with pytest.raises(RequestRefused, match=r"old.1 was deleted with its run"):
            await submit(client, "old.1", "old")
    async with scheduler(bus, tmp_path) as client:
        assert [view.task_id for view in await client.tasks()] == ["new.1"]
        with pytest.raises(RequestRefused, match=r"old.2 was deleted with its run"):
            await submit(client, "old.2", "other")

    assert [(event.task_id, event.run_id) for event in await others.read(Topic.TASKS, TaskDeleted)] == [("old.1", "old"), ("old.2", "old")]


async def test_blobs_that_only_a_deleted_run_names_are_removed(bus: Bus, blobs: Blobs, others: OtherServices, tmp_path: Path) -> None:
    """Two runs share the task and one artifact. What another run names stays until that run is deleted too."""
    async with scheduler(bus, tmp_path, blob_rest_seconds=0.0) as client:
        for task_id in ("old.1", "new.1"):
            await submit(client, task_id, task_id.partition(".")[0])
        own, kept = await leave(others, blobs, "old.1", b"own"), await leave(others, blobs, "new.1", b"kept")
        for task_id in ("old.1", "new.1"):
            shared = await leave(others, blobs, task_id, b"shared")
            await end(client, others, task_id)
        await client.delete_run("old")
        await until(lambda: stored_states(bus), lambda states: states.get("old.1") is True)
        assert [await blobs.has(ref) for ref in (own, shared, kept, PACKED.ref.archive)] == [False, True, True, True]

        await client.delete_run("new")
        await until(lambda: stored_states(bus), lambda states: states.get("new.1") is True)
        assert [await blobs.has(ref) for ref in (own, shared, kept, PACKED.ref.archive)] == [False] * 4


async def stored_states(bus: Bus) -> dict[str, bool]:
    """Return the deleted tasks in the scheduler's state, each with whether its blobs are removed."""
    found = [msgspec.msgpack.decode(record.value or b"") for record in (await bus.last_values(Topic.SCHEDULER_STATE, 0)).values()]
    return {state["task_id"]: state.get("swept", False) for state in found if state["type"] == "deleted_task.v1"}


async def test_blob_that_a_reader_may_still_fetch_waits_for_it(bus: Bus, blobs: Blobs, others: OtherServices) -> None:
    """A service that starts again reads from its mark on, and would take what it cannot fetch for damage."""
    trajectory = built("old.1", 0, turns=((40_000, 40_000),))
    await others.events.send(Topic.BUILT, "old.1.0", trajectory, session_id="old.1.0", group_id="old.1")
    waiting = (await sweep(bus, blobs, "old.1")).waiting
    assert waiting > 0

    await passed(bus, EVALUATOR, Topic.BUILT)
    await others.events.send(Topic.SCORED, "old.1", scored(trajectory), session_id="old.1.0", group_id="old.1")
    (as_read,) = await others.read(Topic.SCORED, TrajectoryScored)
    kept = await others.events.store(as_read)  # by the bridge, while the group is open
    assert (await sweep(bus, blobs, "old.1")).removed == 0
    await passed(bus, BRIDGE, Topic.SCORED)
    await passed(bus, GROUPS, Topic.SCORED)
    assert (await sweep(bus, blobs, "old.1")).waiting == 0
    assert not await blobs.has(kept)


async def test_blob_of_a_call_waits_for_the_marks_of_its_partition(bus: Bus, blobs: Blobs, others: OtherServices) -> None:
    """A gateway or reconstructor that starts reads the calls of ended sessions again, from its mark on."""
    (call,) = [event for event in EVENTS if isinstance(event, CallOpened)]
    call = structs.replace(call, session_id="old.1.0", messages=msgspec.json.encode(["x" * INLINE_LIMIT_BYTES]))
    await others.events.send(Topic.SESSIONS, "old.1.0", call, session_id="old.1.0")
    for group in (GATEWAY, RECONSTRUCTOR):
        assert (await sweep(bus, blobs, "old.1")).waiting == 1
        await passed(bus, group, Topic.SESSIONS)
    assert await sweep(bus, blobs, "old.1") == Swept(removed=1, shared=0, waiting=0)


async def test_what_a_record_in_the_blob_store_names_counts(bus: Bus, blobs: Blobs) -> None:
    """An event that is too large for the log is a blob itself, and names others."""
    shared, own = await blobs.put(b"shared"), await blobs.put(b"own")
    for task_id, refs in (("old.1", (shared, own)), ("new.1", (shared,))):
        artifacts = tuple(Artifact(name=ref.digest[:8], blob=ref) for ref in refs)
        leaving = HarnessExit(cause=ExitCause.EXITED, artifacts=artifacts)
        claim = await blobs.put(encode(built(task_id, 0, given={"exit": leaving})))
        headers = (Header(HEADER_CLAIM, b"1"), Header(HEADER_SESSION, f"{task_id}.0".encode()))
        await bus.send([Outgoing(topic=Topic.BUILT, key=f"{task_id}.0", value=msgspec.msgpack.encode(claim), headers=headers)])
    await passed(bus, EVALUATOR, Topic.BUILT)

    assert await sweep(bus, blobs, "old.1") == Swept(removed=2, shared=1, waiting=0)
    assert [await blobs.has(ref) for ref in (shared, own)] == [True, False]


async def test_blob_that_was_put_a_moment_ago_waits(bus: Bus, blobs: Blobs, others: OtherServices) -> None:
    """Another run may be about to name it."""
    ref = await leave(others, blobs, "old.1", b"own")
    assert await Sweeper(bus, blobs).sweep({"old.1"}, ALL, unused_seconds=3600.0) == Swept(removed=0, shared=0, waiting=1)
    assert await blobs.has(ref)


async def test_run_is_deleted_when_its_days_are_over(bus: Bus, others: OtherServices, tmp_path: Path) -> None:
    """An open one stays, however old it is."""
    async with scheduler(bus, tmp_path) as client:
        await submit(client, "old.1", "old")
        await submit(client, "new.1", "new")
        await end(client, others, "old.1")
    async with scheduler(bus, tmp_path, run_retention_days=1e-9, blob_rest_seconds=0.0) as client:
        await until(client.tasks, lambda views: [view.task_id for view in views] == ["new.1"])

    assert len(await others.read(Topic.TASKS, TaskSubmitted)) == 2
    assert len(await others.read(Topic.SCHEDULER_STATE, DeletedTask)) >= 1


def test_readers_are_the_groups_of_the_services() -> None:
    """The scheduler cannot import the other services."""
    assert READERS == {Topic.SESSIONS: (GATEWAY, RECONSTRUCTOR), Topic.BUILT: (EVALUATOR,), Topic.SCORED: (BRIDGE, GROUPS)}
