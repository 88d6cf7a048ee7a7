"""The trainer-bridge on the embedded bus: restarts, repeats, zombies and early delivery never deliver a session twice."""

import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
import pytest
from opentelemetry.trace import StatusCode
from tests.support.builders import T0, built, calls, group, scored, sealed, spec, started
from tests.support.service_context import MISSING, RUBBISH, open_parts, operator, running_service
from tests.support.spans import Spans
from tests.support.waiting import until

from evener.bus.port import Bus, Fenced, Header, Outgoing, Record
from evener.client.session_views import ScoreView
from evener.proto.blobs import BlobRef
from evener.proto.codec import decode, encode
from evener.proto.fleet import DeadLetter, PolicyPublished, PolicyRetired, PolicyStaged
from evener.proto.reasons import ExclusionReason
from evener.proto.sessions import Artifact
from evener.proto.spec import Purpose
from evener.proto.state import GroupState
from evener.proto.topics import HEADER_GROUP, HEADER_SESSION, Topic
from evener.proto.trajectories import GroupFailed, GroupMerged, TrajectoryScored
from evener.service.context import Service, ServiceContext
from evener.service.events import EventLog
from evener.trainer_bridge.config import Config
from evener.trainer_bridge.groups import GroupReader
from evener.trainer_bridge.merging import Merging
from evener.trainer_bridge.policies import Policies
from evener.trainer_bridge.service import open_service

SECONDS = 60.0
"""Longer than anything here takes."""


@asynccontextmanager
async def running(context: ServiceContext, config: Config) -> AsyncIterator[Service]:
    """A bridge that serves until the block ends, then dies without a word, as by SIGKILL."""
    async with open_service(config, context) as service, running_service(service):
        yield service


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(state=str(tmp_path))


async def write(context: ServiceContext, sessions: Iterable[TrajectoryScored]) -> None:
    """Write scored sessions as the evaluator does."""
    events = EventLog(context.bus, context.blobs)
    for session in sessions:
        trajectory = session.trajectory
        group_id = trajectory.spec.group_id
        await events.send(Topic.SCORED, group_id, session, session_id=trajectory.session_id, group_id=group_id)


async def outcomes(context: ServiceContext, topic: Topic = Topic.MERGED) -> list[GroupMerged | GroupFailed]:
    """Return all groups that ended, blobs fetched."""
    events = EventLog(context.bus, context.blobs)
    found = []
    for partition in range(context.bus.partitions_of(topic)):
        async for record in context.bus.read(topic, partition):
            event = await events.event(record)
            assert isinstance(event, GroupMerged | GroupFailed)
            found.append(event)
    return found


async def consumed(bus: Bus) -> bool:
    """Return whether the bridge's committed offsets are at the ends of `trajectories.scored`."""
    for partition in range(bus.partitions_of(Topic.SCORED)):
        end = await bus.end(Topic.SCORED, partition)
        if end and await bus.committed("trainer-bridge", Topic.SCORED, partition) != end:
            return False
    return True


async def until_consumed(context: ServiceContext) -> None:
    await until(lambda: consumed(context.bus))


async def test_group_is_merged_once_across_restarts_and_repeats(tmp_path: Path, config: Config) -> None:
    """A new bridge after every session, and every session twice."""
    sessions = group((1.0, 0.0, 0.5, 1.0))
    async with open_parts(tmp_path) as context:
        for session in (*sessions, *sessions):
            await write(context, [session])
            async with running(context, config):
                await until_consumed(context)
        (merged,) = await outcomes(context)

    assert isinstance(merged, GroupMerged)
    assert [member.scored for member in merged.members] == list(sessions)


async def test_pending_scores_are_passed_over_until_the_group_was_graded_together(tmp_path: Path, config: Config) -> None:
    """Neither a reward nor the lack of one; of several judgements the first counts."""
    sessions = group((1.0, 0.25))
    waiting = [msgspec.structs.replace(session, pending=True, reward=None, ungraded="its group") for session in sessions]
    second = [msgspec.structs.replace(session, reward=0.0) for session in sessions]
    async with open_parts(tmp_path) as context, running(context, config):
        await write(context, waiting)
        await until_consumed(context)
        assert await outcomes(context) == []
        await write(context, [*sessions, *second])
        await until_consumed(context)
        (merged,) = await outcomes(context)

    assert [member.reward for member in merged.members] == [1.0, 0.25]


async def test_group_delivered_early_is_not_opened_again_by_stragglers(tmp_path: Path, config: Config) -> None:
    """Also when the bridge restarts between the delivery and the stragglers, and a delivered session is repeated."""
    sessions = group((1.0, 0.0, 0.5, 1.0), deliver_early_at=2)
    async with open_parts(tmp_path) as context:
        for batch in (sessions[:2], sessions[:1], sessions[2:], sessions):
            await write(context, batch)
            async with running(context, config):
                await until_consumed(context)
        (merged,) = await outcomes(context)
        state = await state_of(context, "fix-the-bug")

    assert [member.excluded for member in merged.members] == [None, None, ExclusionReason.LATE, ExclusionReason.LATE]
    assert (sorted(state.seen), {member.index for member in state.scored}) == ([0, 1, 2, 3], {2, 3})


async def test_frozen_bridge_cannot_deliver_what_its_successor_delivered(tmp_path: Path, config: Config, spans: Spans) -> None:
    """A zombie has folded the last session of a group and commits after another took its partition over."""
    sessions = group((1.0, 0.0))
    async with open_parts(tmp_path, partitions=1) as context:
        await write(context, sessions)
        records = [record async for record in context.bus.read(Topic.SCORED, 0)]
        zombie = await merging(context, config)
        await zombie.merge(records[:1])
        successor = await merging(context, config)
        await successor.merge(records[1:])
        with pytest.raises(Fenced):
            await zombie.merge(records[1:])

        assert len(await outcomes(context)) == 1
        assert await context.bus.committed("trainer-bridge", Topic.SCORED, 0) == records[-1].offset + 1
    assert [span.status.status_code for span in spans.all("merge")] == [StatusCode.UNSET, StatusCode.ERROR]


async def _at_once(policy: str) -> None:
    """No version is on its way."""


async def merging(context: ServiceContext, config: Config) -> Merging:
    """Take partition 0 over, as the service does."""
    events = EventLog(context.bus, context.blobs)
    producer = await context.bus.producer("bridge-0")
    taken = Merging(0, producer, config, context, policies=Policies(context.bus, events), settled=_at_once)
    await taken.restore()
    return taken


async def test_outputs_stand_in_the_partition_of_their_input(tmp_path: Path, config: Config) -> None:
    """Input, state and output of a group have one partition number: one producer writes them."""
    async with open_parts(tmp_path, partitions=4) as context:
        names = [f"task-{number}" for number in range(12)]
        for name in names:
            await write(context, group((1.0, 0.0), name=name))
        async with running(context, config):
            await until_consumed(context)
        assert len(await outcomes(context)) == len(names)
        for topic in (Topic.MERGED, Topic.BRIDGE_STATE):
            for partition in range(4):
                async for record in context.bus.read(topic, partition):
                    assert partition == context.bus.partition_of(Topic.SCORED, record.key)


@pytest.mark.parametrize("purpose", [Purpose.EVAL, Purpose.COLLECT])
async def test_what_is_evaluated_or_collected_is_kept_and_not_merged(tmp_path: Path, config: Config, purpose: Purpose) -> None:
    async with open_parts(tmp_path) as context:
        await write(context, group((1.0, 0.0), purpose=purpose))
        async with running(context, config):
            await until_consumed(context)

        assert await outcomes(context, Topic.MERGED) == []
        assert len(await outcomes(context, Topic.KEPT)) == 1


async def test_large_rows_pass_through_as_references(tmp_path: Path, config: Config) -> None:
    """Rows above the inline limit are in the blob store before and after, and the group's record is small."""
    turns = ((40_000, 20_000), (5_000, 5_000))
    sessions = tuple(scored(built(index=index, size=2, turns=turns), reward=float(index)) for index in (0, 1))
    async with open_parts(tmp_path, partitions=1) as context:
        await write(context, sessions)
        async with running(context, config):
            await until_consumed(context)
        (record,) = [record async for record in context.bus.read(Topic.MERGED, 0)]
        (merged,) = await outcomes(context)

    assert record.value is not None
    light = decode(record.value)
    assert isinstance(light, GroupMerged)
    assert light.members[0].scored is not None
    assert isinstance(light.members[0].scored.trajectory.rows[0].ids, BlobRef)
    assert [member.scored for member in merged.members] == list(sessions)


async def test_stale_sessions_are_excluded_by_the_newest_policy(tmp_path: Path, config: Config) -> None:
    """Also after a restart, when the sessions come from the state."""
    sessions = (
        scored(built(index=0, size=3, version=1, max_staleness=1)),
        *(scored(built(index=index, size=3, version=3, max_staleness=1)) for index in (1, 2)),
    )
    async with open_parts(tmp_path) as context:
        events = EventLog(context.bus, context.blobs)
        await write(context, sessions[:2])
        async with running(context, config):
            await until_consumed(context)
        published = PolicyPublished(policy="policy", version=3, location="/weights/3", published_at=T0)
        async with Policies(context.bus, events).writer("policy") as write_event:
            await write_event(published)
        await write(context, sessions[2:])
        async with running(context, config):
            await until_consumed(context)
        (merged,) = await outcomes(context)

    assert [member.excluded for member in merged.members] == [ExclusionReason.STALE, None, None]


def impatient(config: Config) -> Config:
    """Return a configuration that does not let groups wait for a version that nobody can load."""
    return msgspec.structs.replace(config, load_seconds=0.1)


async def test_tokens_of_a_version_that_was_rolled_back_or_not_proven_are_not_trained(tmp_path: Path, config: Config) -> None:
    """An engine sampled under its label before the canary told that it was wrong, or before the bridge died."""
    sessions = [scored(built(index=index, size=4, version=version)) for index, version in enumerate((1, 1, 2, 3))]
    async with open_parts(tmp_path) as context:
        async with Policies(context.bus, EventLog(context.bus, context.blobs)).writer("policy") as write_event:
            await write_event(PolicyPublished(policy="policy", version=1, location="/weights/1", published_at=T0))
            await write_event(PolicyRetired(policy="policy", version=2, reason="stale weights", retired_at=T0))
            await write_event(PolicyStaged(policy="policy", version=3, location="/weights/3", digest="3", staged_at=T0))
        await write(context, sessions)
        async with running(context, impatient(config)):
            await until_consumed(context)
        (merged,) = await outcomes(context)

    assert [member.excluded for member in merged.members] == [None, None, ExclusionReason.VERSION_UNKNOWN, ExclusionReason.VERSION_UNKNOWN]


LONG = ((58_000, 300), (1_700, 50))
"""A long session of an ordinary harness: 60,000 tokens, whose arrays are in the blob store."""


@pytest.mark.parametrize("retired", [False, True], ids=["staged", "rolled back"])
async def test_a_version_that_becomes_unproven_after_a_session_was_read_is_looked_up(
    tmp_path: Path, config: Config, *, retired: bool
) -> None:
    """Then nothing was unproven_versions, and the arrays of the session stayed where they were."""
    sessions = [scored(built(index=index, size=3, turns=LONG, version=int(index == 0))) for index in range(3)]
    inconsistency = (
        PolicyRetired(policy="policy", version=1, reason="stale weights", retired_at=T0)
        if retired
        else PolicyStaged(policy="policy", version=1, location="/weights/1", digest="1", staged_at=T0)
    )
    async with open_parts(tmp_path, partitions=1) as context, running(context, impatient(config)):
        await write(context, sessions[:2])
        await until_consumed(context)
        async with Policies(context.bus, EventLog(context.bus, context.blobs)).writer("policy") as write_event:
            await write_event(inconsistency)
        await write(context, sessions[2:])
        await until_consumed(context)
        (merged,) = await outcomes(context)

    assert [member.excluded for member in merged.members] == [ExclusionReason.VERSION_UNKNOWN, None, None]
    assert merged.accounting.delivered == 700
    assert [member.scored for member in merged.members][1:] == sessions[1:]


async def test_a_session_whose_record_is_gone_when_its_group_ends_is_counted_from_the_log(tmp_path: Path, config: Config) -> None:
    """The blob store lost what the group's state names: the others are delivered, and its tokens are excluded."""
    sessions = group((1.0, 0.0, 1.0))
    async with open_parts(tmp_path, partitions=1) as context, running(context, config):
        await write(context, sessions[:2])
        await lived(context, "fix-the-bug.0", size=3, sampled=17)
        await until_consumed(context)
        lost = (await state_of(context, "fix-the-bug")).scored[0].session
        assert lost is not None
        (blob,) = (tmp_path / "blobs").rglob(lost.digest)
        blob.unlink()
        await write(context, sessions[2:])
        await until_consumed(context)
        (merged,) = await outcomes(context)

    assert isinstance(merged, GroupMerged)
    assert [member.excluded for member in merged.members] == [ExclusionReason.DEAD_LETTER, None, None]
    assert merged.accounting.excluded == {ExclusionReason.DEAD_LETTER: 17}


class TrimmedBus:
    """A bus whose `trajectories.scored` keeps nothing, as after its retention; all else is the bus behind it."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    def read(self, topic: str, partition: int, start: int = 0) -> AsyncIterator[Record]:
        assert topic != Topic.SCORED, "its records are gone"
        return self._bus.read(topic, partition, start)


async def test_a_group_outlives_the_retention_of_the_scores_that_it_waits_with(tmp_path: Path, config: Config) -> None:
    """Its first sessions were scored long before its last one, and a new bridge knows them by the group's state alone."""
    sessions = group((1.0, 0.0, 0.5, 1.0))
    async with open_parts(tmp_path, partitions=1) as context:
        await write(context, sessions[:3])
        async with running(context, config):
            await until_consumed(context)
        trimmed = msgspec.structs.replace(context, bus=TrimmedBus(context.bus))
        await write(context, sessions[3:])
        async with running(trimmed, config):
            await until_consumed(context)
        (merged,) = await outcomes(context)

    assert isinstance(merged, GroupMerged)
    assert [member.scored for member in merged.members] == list(sessions)


async def test_groups_that_a_rule_drops_are_counted_apart_and_recorded(tmp_path: Path, config: Config) -> None:
    """In the metrics by result, with every token; in the log with the rule's name, where trainers read."""
    async with open_parts(tmp_path, partitions=1) as context, running(context, config):
        await write(context, group((1.0, 1.0), name="equal", drop_zero_variance=True))
        await write(context, group((1.0, 0.0), name="other", drop_zero_variance=True))
        await until_consumed(context)
        dropped, merged = await outcomes(context)
        told = context.registry.get_sample_value
        counts = [told("evener_groups_total", {"result": result, "purpose": "train"}) for result in ("dropped", "merged", "failed")]

    assert isinstance(dropped, GroupFailed)
    assert isinstance(merged, GroupMerged)
    assert (dropped.group_id, dropped.dropped_by, dropped.accounting.excluded) == (
        "equal",
        "zero_variance",
        {ExclusionReason.GROUP_DROPPED: 20},
    )
    assert counts == [1, 1, None]
    assert told("evener_tokens_excluded_total", {"reason": "group_dropped"}) == 20


async def state_of(context: ServiceContext, group_id: str) -> GroupState:
    """Return what the bridge remembers of a group."""
    record = (await context.bus.last_values(Topic.BRIDGE_STATE, context.bus.partition_of(Topic.SCORED, group_id)))[group_id]
    assert record.value is not None
    state = decode(record.value)
    assert isinstance(state, GroupState)
    return state


MEGABYTE: Final = 1_000_000
STATE_BYTES: Final = 300
"""The most that one member may add to the state of its group."""


@pytest.mark.parametrize(
    "shape",
    [{"turns": ((58_000, 300), (1_700, 50))}, {"given": {"calls": calls([(10, 5)] * 6_500)}}],
    ids=["arrays of 60,000 tokens", "6,500 calls"],
)
async def test_a_group_of_sixteen_megabyte_trajectories_is_written_once(tmp_path: Path, shape: dict[str, Any]) -> None:
    """Each arrival writes its own session and a few bytes for each before it, and not the sessions before it again."""
    sessions = [scored(built(index=index, size=16, **shape)) for index in range(16)]
    assert all(len(encode(session)) > 0.95 * MEGABYTE for session in sessions)
    async with open_parts(tmp_path, partitions=1) as context:
        await write(context, sessions)
        before = stored_bytes(tmp_path)
        async with running(context, Config(state=str(tmp_path), batch=1)):
            await until_consumed(context)
        states = [len(record.value or b"") async for record in context.bus.read(Topic.BRIDGE_STATE, 0)]

    assert len(states) == 16
    assert sum(states) < 16 * 16 * STATE_BYTES
    assert 0 < stored_bytes(tmp_path) - before < 1.2 * 16 * MEGABYTE


def stored_bytes(folder: Path) -> int:
    """Return what the blob store holds, in bytes."""
    return sum(path.stat().st_size for path in (folder / "blobs").rglob("*") if path.is_file())


@pytest.mark.parametrize("bad", [RUBBISH, MISSING], ids=["rubbish", "missing"])
async def test_unreadable_session_is_counted_from_the_log_and_its_group_ends(
    tmp_path: Path, config: Config, bad: tuple[bytes, tuple[Header, ...]]
) -> None:
    """Its record goes to dead-letters; its tokens, known from its seal, are left out as dead_letter."""
    async with open_parts(tmp_path) as context:
        await write(context, group((1.0, 0.0, 1.0))[:2])
        await lived(context, "fix-the-bug.2", size=3, sampled=17)
        value, claim = bad
        headers = (Header(HEADER_SESSION, b"fix-the-bug.2"), Header(HEADER_GROUP, b"fix-the-bug"), *claim)
        await context.bus.send([Outgoing(topic=Topic.SCORED, key="fix-the-bug", value=value, headers=headers)])
        async with running(context, config):
            await until_consumed(context)
        (merged,) = await outcomes(context)
        (letter,) = [record async for record in context.bus.read(Topic.DEAD_LETTERS, 0)]

    assert isinstance(merged, GroupMerged)
    assert merged.members[2].excluded is ExclusionReason.DEAD_LETTER
    assert merged.accounting.excluded == {ExclusionReason.DEAD_LETTER: 17}
    assert letter.value is not None
    assert isinstance(decode(letter.value), DeadLetter)


async def lived(context: ServiceContext, session_id: str, *, size: int, sampled: int) -> None:
    """Write the start and the seal of a session."""
    events = EventLog(context.bus, context.blobs)
    index = int(session_id.rpartition(".")[2])
    seal = sealed(session_id, calls=1, sampled_tokens=sampled)
    for event in (started(session_id, spec(index=index, size=size)), seal):
        await events.send(Topic.SESSIONS, session_id, event, session_id=session_id)


async def test_ended_group_is_forgotten_after_the_retention(tmp_path: Path) -> None:
    """The state does not grow for ever."""
    config = Config(state=str(tmp_path), keep_ended_seconds=0.0)
    async with open_parts(tmp_path, partitions=1) as context:
        await write(context, group((1.0, 0.0), name="first"))
        async with running(context, config):
            await until_consumed(context)
        await write(context, group((1.0, 0.0), name="second"))
        async with running(context, config):
            await until_consumed(context)

        assert set(await context.bus.last_values(Topic.BRIDGE_STATE, 0)) == {"second"}


@asynccontextmanager
async def client(context: ServiceContext, config: Config) -> AsyncIterator[aiohttp.ClientSession]:
    async with running(context, config) as service, operator(service.routes) as http:
        yield http


async def test_score_of_a_session_is_reported_with_its_evidence_and_what_became_of_it(tmp_path: Path, config: Config) -> None:
    """Before its group ends, and after; the first score counts. Of a session that is not there nothing is known."""
    evidence = (Artifact(name="test-stdout.txt", blob=BlobRef(digest="0" * 64, size=4)),)
    sessions = tuple(msgspec.structs.replace(one, evidence=evidence, tries=2) for one in group((1.0, None, 0.0), name="one"))
    async with open_parts(tmp_path) as context, client(context, config) as http:
        await write(context, sessions[:2])
        await write(context, (msgspec.structs.replace(sessions[1], reward=0.25),))
        await until_consumed(context)
        early = await score(http, "one.1")
        await write(context, sessions[2:])
        await until_consumed(context)
        trained, left, unknown = [await score(http, name) for name in ("one.0", "one.1", "two.0")]

    assert early.score is not None
    assert (early.score.reward, early.score.ungraded, early.score.tries) == (None, "the grader gave no reward", 2)
    assert (early.score.evidence, early.use) == (evidence, None)
    assert trained.score is not None
    assert trained.use is not None
    assert left.use is not None
    assert (trained.score.reward, trained.use.delivered, trained.use.excluded, left.use.excluded) == (
        1.0,
        True,
        None,
        ExclusionReason.UNGRADED,
    )
    assert (unknown.score, unknown.use) == (None, None)


async def score(http: aiohttp.ClientSession, session_id: str) -> ScoreView:
    """Ask what a session was worth."""
    async with http.get(f"/scores/{session_id}") as answer:
        return msgspec.json.decode(await answer.read(), type=ScoreView)


async def test_groups_are_listed_and_found_over_http(tmp_path: Path, config: Config) -> None:
    async with open_parts(tmp_path) as context, client(context, config) as http:
        await write(context, group((1.0, 0.0), name="one"))
        await write(context, group((1.0, 0.0), name="two", run_id="other"))
        await write(context, group((1.0, 0.0), name="three", purpose=Purpose.EVAL))
        await until_consumed(context)
        everything = await lines(http, "/groups")

        assert sorted(everything) == ["one", "three", "two"]
        assert await lines(http, "/groups?run_id=other") == ["two"]
        assert await lines(http, "/groups?purpose=eval") == ["three"]
        assert await lines(http, f"/groups?after={time.time() + 1}") == []
        async with http.get("/groups/one") as found:
            assert msgspec.json.decode(await found.read(), type=GroupMerged).group_id == "one"
        async with http.get("/groups/none") as missing:
            assert missing.status == 404
            assert "or ended so long ago that only GET /groups still has it" in await missing.text()
        assert await status(http, "GET", "/groups?colour=red") == 400
        assert await status(http, "GET", "/groups", headers={"authorization": "Bearer wrong"}) == 401


class CountingBus:
    """A bus that counts the records that are read of each topic; all else is the bus behind it."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.read_of = Counter[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    async def read(self, topic: str, partition: int, start: int = 0) -> AsyncIterator[Record]:
        async for record in self._bus.read(topic, partition, start):
            self.read_of[topic] += 1
            yield record


async def test_one_group_of_many_is_found_without_reading_those_before_it(tmp_path: Path) -> None:
    """By a bridge that has just started, and took no part in any of them."""
    names = [f"g{number}" for number in range(60)]
    async with open_parts(tmp_path, partitions=1) as context:
        for name in names:
            await write(context, group((1.0, 0.0), name=name))
        await write(context, group((1.0, 0.0, 0.5), name="early", deliver_early_at=2))
        await write(context, group((1.0, 0.0), name="open")[:1])
        async with running(context, Config(state=str(tmp_path), batch=16)):
            await until_consumed(context)
        bus = CountingBus(context.bus)
        reader = GroupReader(bus, EventLog(context.bus, context.blobs))
        found = [await reader.one(name) for name in ("g7", "g59", "early")]
        scored_one, ended = await reader.session("g31.1")
        waiting, no_end = await reader.session("open.0")

        assert [event.group_id for event in found if event is not None] == ["g7", "g59", "early"]
        assert (await reader.one("open"), await reader.one("never")) == (None, None)
        assert scored_one is not None
        assert ended is not None
        assert (scored_one.reward, ended.group_id) == (0.0, "g31")
        assert waiting is not None
        assert (waiting.reward, no_end) == (1.0, None)
        assert bus.read_of[Topic.MERGED] <= 4 * 2
        assert (bus.read_of[Topic.KEPT], bus.read_of[Topic.SCORED]) == (0, 0)
        assert bus.read_of[Topic.BRIDGE_STATE] == await bus.end(Topic.BRIDGE_STATE, 0)
        straggler, _ = await reader.session("early.2")
        assert straggler is not None
        assert straggler.reward == 0.5


async def lines(http: aiohttp.ClientSession, path: str) -> list[str]:
    async with http.get(path) as answer:
        return [msgspec.json.decode(line, type=GroupMerged | GroupFailed).group_id async for line in answer.content]


async def status(http: aiohttp.ClientSession, method: str, path: str, **options: Any) -> int:
    async with http.request(method, path, **options) as answer:
        return answer.status


async def test_groups_come_as_msgpack_frames_where_asked_for(tmp_path: Path, config: Config) -> None:
    async with open_parts(tmp_path) as context, client(context, config) as http:
        await write(context, group((1.0, 0.0)))
        await until_consumed(context)
        async with http.get("/groups", headers={"accept": "application/x-msgpack"}) as answer:
            body = await answer.read()

        size = int.from_bytes(body[:4], "big")
        assert len(body) == 4 + size
        assert decode(body[4:]) == (await outcomes(context))[0]
