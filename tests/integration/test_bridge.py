"""The trainer-bridge on the embedded bus: restarts, repeats, zombies and early delivery never deliver a session twice."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from tests.builders import T0, built, group, scored, spec
from tests.parts import MISSING, RUBBISH, open_parts, operator

from evener.blobs import waited as waited_module
from evener.bus.port import Bus, Fenced, Header, Outgoing
from evener.client.session_views import ScoreView
from evener.proto.blobs import BlobRef
from evener.proto.codec import decode
from evener.proto.ends import End, LeftOut
from evener.proto.fleet import DeadLetter, PolicyPublished, PolicyRetired, PolicyStaged
from evener.proto.sessions import Artifact, SessionSealed, SessionStarted
from evener.proto.spec import Purpose
from evener.proto.state import GroupState
from evener.proto.topics import HEADER_GROUP, HEADER_SESSION, Topic
from evener.proto.trajectories import GroupFailed, GroupMerged, TrajectoryScored
from evener.service.events import EventLog
from evener.service.parts import Parts, Service
from evener.service.telemetry import metrics
from evener.trainer_bridge.config import Config
from evener.trainer_bridge.merging import Merging
from evener.trainer_bridge.policies import Policies
from evener.trainer_bridge.service import open_service

SECONDS = 5.0
"""Longer than anything here takes."""


@asynccontextmanager
async def running(parts: Parts, config: Config) -> AsyncIterator[Service]:
    """A bridge that serves until the block ends, then dies without a word, as by SIGKILL."""
    async with open_service(config, parts) as service:
        task = asyncio.ensure_future(service.run())
        try:
            yield service
        finally:
            task.cancel()
            await asyncio.wait([task])


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(state=str(tmp_path))


async def write(parts: Parts, sessions: Iterable[TrajectoryScored]) -> None:
    """Write scored sessions as the evaluator does."""
    events = EventLog(parts.bus, parts.blobs)
    for session in sessions:
        trajectory = session.trajectory
        group_id = trajectory.spec.group_id
        await events.send(Topic.SCORED, group_id, session, session_id=trajectory.session_id, group_id=group_id)


async def outcomes(parts: Parts, topic: Topic = Topic.MERGED) -> list[GroupMerged | GroupFailed]:
    """Return all groups that ended, blobs fetched."""
    events = EventLog(parts.bus, parts.blobs)
    found = []
    for partition in range(parts.bus.partitions_of(topic)):
        async for record in parts.bus.read(topic, partition):
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


async def until_consumed(parts: Parts) -> None:
    async with asyncio.timeout(SECONDS):
        while not await consumed(parts.bus):  # noqa: ASYNC110 - the log is what is looked at
            await asyncio.sleep(0.01)


async def test_group_is_merged_once_across_restarts_and_repeats(tmp_path: Path, config: Config) -> None:
    """A new bridge after every session, and every session twice."""
    sessions = group((1.0, 0.0, 0.5, 1.0))
    async with open_parts(tmp_path) as parts:
        for session in (*sessions, *sessions):
            await write(parts, [session])
            async with running(parts, config):
                await until_consumed(parts)
        (merged,) = await outcomes(parts)

    assert isinstance(merged, GroupMerged)
    assert [member.scored for member in merged.members] == list(sessions)


async def test_group_delivered_early_is_not_opened_again_by_stragglers(tmp_path: Path, config: Config) -> None:
    """Also when the bridge restarts between the delivery and the stragglers, and a delivered session is repeated."""
    sessions = group((1.0, 0.0, 0.5, 1.0), early_at=2)
    async with open_parts(tmp_path) as parts:
        for batch in (sessions[:2], sessions[:1], sessions[2:], sessions):
            await write(parts, batch)
            async with running(parts, config):
                await until_consumed(parts)
        (merged,) = await outcomes(parts)
        partition = parts.bus.partition_of(Topic.SCORED, "fix-the-bug")
        record = (await parts.bus.last_values(Topic.BRIDGE_STATE, partition))["fix-the-bug"]

    assert [member.left_out for member in merged.members] == [None, None, LeftOut.LATE, LeftOut.LATE]
    assert record.value is not None
    state = decode(record.value)
    assert isinstance(state, GroupState)
    assert (len(state.seen), state.scored) == (4, ())


async def test_frozen_bridge_cannot_deliver_what_its_successor_delivered(tmp_path: Path, config: Config) -> None:
    """A zombie has folded the last session of a group and commits after another took its partition over."""
    sessions = group((1.0, 0.0))
    async with open_parts(tmp_path, partitions=1) as parts:
        await write(parts, sessions)
        records = [record async for record in parts.bus.read(Topic.SCORED, 0)]
        zombie = await merging(parts, config)
        await zombie.merge(records[:1])
        successor = await merging(parts, config)
        await successor.merge(records[1:])
        with pytest.raises(Fenced):
            await zombie.merge(records[1:])

        assert len(await outcomes(parts)) == 1
        assert await parts.bus.committed("trainer-bridge", Topic.SCORED, 0) == records[-1].offset + 1


async def _at_once(policy: str) -> None:
    """No version is on its way."""


async def merging(parts: Parts, config: Config) -> Merging:
    """Take partition 0 over, as the service does."""
    events = EventLog(parts.bus, parts.blobs)
    taken = Merging(
        partition=0,
        producer=await parts.bus.producer("bridge-0"),
        config=config,
        bus=parts.bus,
        events=events,
        policies=Policies(parts.bus, events),
        settled=_at_once,
        metrics=metrics(parts.registry),
    )
    await taken.restore()
    return taken


async def test_outputs_stand_in_the_partition_of_their_input(tmp_path: Path, config: Config) -> None:
    """Input, state and output of a group have one partition number: one producer writes them."""
    async with open_parts(tmp_path, partitions=4) as parts:
        names = [f"task-{number}" for number in range(12)]
        for name in names:
            await write(parts, group((1.0, 0.0), name=name))
        async with running(parts, config):
            await until_consumed(parts)
        assert len(await outcomes(parts)) == len(names)
        for topic in (Topic.MERGED, Topic.BRIDGE_STATE):
            for partition in range(4):
                async for record in parts.bus.read(topic, partition):
                    assert partition == parts.bus.partition_of(Topic.SCORED, record.key)


@pytest.mark.parametrize("purpose", [Purpose.EVAL, Purpose.COLLECT])
async def test_what_is_evaluated_or_collected_is_kept_and_not_merged(tmp_path: Path, config: Config, purpose: Purpose) -> None:
    async with open_parts(tmp_path) as parts:
        await write(parts, group((1.0, 0.0), purpose=purpose))
        async with running(parts, config):
            await until_consumed(parts)

        assert await outcomes(parts, Topic.MERGED) == []
        assert len(await outcomes(parts, Topic.KEPT)) == 1


async def test_large_rows_pass_through_as_references(tmp_path: Path, config: Config) -> None:
    """Rows above the inline limit are in the blob store before and after, and the group's record is small."""
    turns = ((40_000, 20_000), (5_000, 5_000))
    sessions = tuple(scored(built(index=index, size=2, turns=turns), reward=float(index)) for index in (0, 1))
    async with open_parts(tmp_path, partitions=1) as parts:
        await write(parts, sessions)
        async with running(parts, config):
            await until_consumed(parts)
        (record,) = [record async for record in parts.bus.read(Topic.MERGED, 0)]
        (merged,) = await outcomes(parts)

    assert record.value is not None
    light = decode(record.value)
    assert isinstance(light, GroupMerged)
    assert light.members[0].scored is not None
    assert isinstance(light.members[0].scored.trajectory.rows[0].ids, BlobRef)
    assert [member.scored for member in merged.members] == list(sessions)


async def test_stale_sessions_are_left_out_by_the_newest_policy(tmp_path: Path, config: Config) -> None:
    """Also after a restart, when the sessions come from the state."""
    sessions = (
        scored(built(index=0, size=3, version=1, max_lag=1)),
        *(scored(built(index=index, size=3, version=3, max_lag=1)) for index in (1, 2)),
    )
    async with open_parts(tmp_path) as parts:
        events = EventLog(parts.bus, parts.blobs)
        await write(parts, sessions[:2])
        async with running(parts, config):
            await until_consumed(parts)
        published = PolicyPublished(policy="policy", version=3, location="/weights/3", published_at=T0)
        async with Policies(parts.bus, events).writer("policy") as writer:
            await writer.write(published)
        await write(parts, sessions[2:])
        async with running(parts, config):
            await until_consumed(parts)
        (merged,) = await outcomes(parts)

    assert [member.left_out for member in merged.members] == [LeftOut.STALE, None, None]


def impatient(config: Config) -> Config:
    """Return a configuration that does not let groups wait for a version that nobody can load."""
    return msgspec.structs.replace(config, load_seconds=0.1)


async def test_tokens_of_a_version_that_was_rolled_back_or_not_proven_are_not_trained(tmp_path: Path, config: Config) -> None:
    """An engine sampled under its label before the canary told that it was wrong, or before the bridge died."""
    sessions = [scored(built(index=index, size=4, version=version)) for index, version in enumerate((1, 1, 2, 3))]
    async with open_parts(tmp_path) as parts:
        async with Policies(parts.bus, EventLog(parts.bus, parts.blobs)).writer("policy") as writer:
            await writer.write(PolicyPublished(policy="policy", version=1, location="/weights/1", published_at=T0))
            await writer.write(PolicyRetired(policy="policy", version=2, reason="stale weights", retired_at=T0))
            await writer.write(PolicyStaged(policy="policy", version=3, location="/weights/3", digest="3", staged_at=T0))
        await write(parts, sessions)
        async with running(parts, impatient(config)):
            await until_consumed(parts)
        (merged,) = await outcomes(parts)

    assert [member.left_out for member in merged.members] == [None, None, LeftOut.VERSION_UNKNOWN, LeftOut.VERSION_UNKNOWN]


LONG = ((58_000, 300), (1_700, 50))
"""A long session of an ordinary harness: 60,000 tokens, whose arrays are in the blob store."""


@pytest.mark.parametrize("retired", [False, True], ids=["staged", "rolled back"])
async def test_a_version_that_becomes_doubtful_after_a_session_was_read_is_looked_up(
    tmp_path: Path, config: Config, *, retired: bool
) -> None:
    """Then nothing was doubtful, and the arrays of the session stayed where they were."""
    sessions = [scored(built(index=index, size=3, turns=LONG, version=int(index == 0))) for index in range(3)]
    doubt = (
        PolicyRetired(policy="policy", version=1, reason="stale weights", retired_at=T0)
        if retired
        else PolicyStaged(policy="policy", version=1, location="/weights/1", digest="1", staged_at=T0)
    )
    async with open_parts(tmp_path, partitions=1) as parts, running(parts, impatient(config)):
        await write(parts, sessions[:2])
        await until_consumed(parts)
        async with Policies(parts.bus, EventLog(parts.bus, parts.blobs)).writer("policy") as writer:
            await writer.write(doubt)
        await write(parts, sessions[2:])
        await until_consumed(parts)
        (merged,) = await outcomes(parts)

    assert [member.left_out for member in merged.members] == [LeftOut.VERSION_UNKNOWN, None, None]
    assert merged.accounting.delivered == 700
    assert [member.scored for member in merged.members][1:] == sessions[1:]


async def test_a_session_whose_versions_cannot_be_read_is_not_trained(
    tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its blobs are gone, and it may be too old: the others of its group are delivered."""
    monkeypatch.setattr(waited_module, "MISSING_PAUSES_SECONDS", (0.0,))
    sessions = [scored(built(index=index, size=3, turns=LONG, version=int(index == 0), max_lag=5)) for index in range(3)]
    async with open_parts(tmp_path, partitions=1) as parts:
        async with Policies(parts.bus, EventLog(parts.bus, parts.blobs)).writer("policy") as writer:
            await writer.write(PolicyPublished(policy="policy", version=1, location="/weights/1", published_at=T0))
        await write(parts, sessions)
        lost = sessions[0].trajectory.rows[0].versions
        assert isinstance(lost, bytes)
        (blob,) = (tmp_path / "blobs").rglob(hashlib.sha256(lost).hexdigest())
        blob.unlink()
        async with running(parts, config):
            await until_consumed(parts)
        (record,) = [record async for record in parts.bus.read(Topic.MERGED, 0)]

    assert record.value is not None
    merged = decode(record.value)
    assert isinstance(merged, GroupMerged)
    assert [member.left_out for member in merged.members] == [LeftOut.VERSION_UNKNOWN, None, None]


@pytest.mark.parametrize("bad", [RUBBISH, MISSING], ids=["rubbish", "missing"])
async def test_unreadable_session_is_counted_from_the_log_and_its_group_ends(
    tmp_path: Path, config: Config, bad: tuple[bytes, tuple[Header, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record goes to dead-letters; its tokens, known from its seal, are left out as dead_letter."""
    monkeypatch.setattr(waited_module, "MISSING_PAUSES_SECONDS", (0.0,))
    async with open_parts(tmp_path) as parts:
        await write(parts, group((1.0, 0.0, 1.0))[:2])
        await lived(parts, "fix-the-bug.2", size=3, sampled=17)
        value, claim = bad
        headers = (Header(HEADER_SESSION, b"fix-the-bug.2"), Header(HEADER_GROUP, b"fix-the-bug"), *claim)
        await parts.bus.send([Outgoing(topic=Topic.SCORED, key="fix-the-bug", value=value, headers=headers)])
        async with running(parts, config):
            await until_consumed(parts)
        (merged,) = await outcomes(parts)
        (letter,) = [record async for record in parts.bus.read(Topic.DEAD_LETTERS, 0)]

    assert isinstance(merged, GroupMerged)
    assert merged.members[2].left_out is LeftOut.DEAD_LETTER
    assert merged.accounting.left_out == {LeftOut.DEAD_LETTER: 17}
    assert letter.value is not None
    assert isinstance(decode(letter.value), DeadLetter)


async def lived(parts: Parts, session_id: str, *, size: int, sampled: int) -> None:
    """Write the start and the seal of a session."""
    events = EventLog(parts.bus, parts.blobs)
    index = int(session_id.rpartition(".")[2])
    started = SessionStarted(
        session_id=session_id,
        attempt=1,
        start_id="s",
        runner_id="r",
        dispatched_at=T0,
        started_at=T0,
        spec=spec(index=index, size=size),
    )
    sealed = SessionSealed(
        session_id=session_id, attempt=1, end=End.FINISHED, rows_digest="0" * 64, calls=1, sampled_tokens=sampled, sealed_at=T0
    )
    for event in (started, sealed):
        await events.send(Topic.SESSIONS, session_id, event, session_id=session_id)


async def test_ended_group_is_forgotten_after_the_retention(tmp_path: Path) -> None:
    """The state does not grow for ever."""
    config = Config(state=str(tmp_path), keep_ended_seconds=0.0)
    async with open_parts(tmp_path, partitions=1) as parts:
        await write(parts, group((1.0, 0.0), name="first"))
        async with running(parts, config):
            await until_consumed(parts)
        await asyncio.sleep(0.01)
        await write(parts, group((1.0, 0.0), name="second"))
        async with running(parts, config):
            await until_consumed(parts)

        assert set(await parts.bus.last_values(Topic.BRIDGE_STATE, 0)) == {"second"}


@asynccontextmanager
async def client(parts: Parts, config: Config) -> AsyncIterator[aiohttp.ClientSession]:
    async with running(parts, config) as service, operator(service.routes) as http:
        yield http


async def test_score_of_a_session_is_told_with_its_evidence_and_what_became_of_it(tmp_path: Path, config: Config) -> None:
    """Before its group ends, and after; the first score counts. Of a session that is not there nothing is known."""
    evidence = (Artifact(name="test-stdout.txt", blob=BlobRef(digest="0" * 64, size=4)),)
    sessions = tuple(msgspec.structs.replace(one, evidence=evidence, tries=2) for one in group((1.0, None, 0.0), name="one"))
    async with open_parts(tmp_path) as parts, client(parts, config) as http:
        await write(parts, sessions[:2])
        await write(parts, (msgspec.structs.replace(sessions[1], reward=0.25),))
        await until_consumed(parts)
        early = await score(http, "one.1")
        await write(parts, sessions[2:])
        await until_consumed(parts)
        trained, left, unknown = [await score(http, name) for name in ("one.0", "one.1", "two.0")]

    assert early.score is not None
    assert (early.score.reward, early.score.ungraded, early.score.tries) == (None, "the grader gave no reward", 2)
    assert (early.score.evidence, early.use) == (evidence, None)
    assert trained.score is not None
    assert trained.use is not None
    assert left.use is not None
    assert (trained.score.reward, trained.use.delivered, trained.use.left_out, left.use.left_out) == (1.0, True, None, LeftOut.UNGRADED)
    assert (unknown.score, unknown.use) == (None, None)


async def score(http: aiohttp.ClientSession, session_id: str) -> ScoreView:
    """Ask what a session was worth."""
    async with http.get(f"/scores/{session_id}") as answer:
        return msgspec.json.decode(await answer.read(), type=ScoreView)


async def test_groups_are_listed_and_found_over_http(tmp_path: Path, config: Config) -> None:
    async with open_parts(tmp_path) as parts, client(parts, config) as http:
        await write(parts, group((1.0, 0.0), name="one"))
        await write(parts, group((1.0, 0.0), name="two", run_id="other"))
        await write(parts, group((1.0, 0.0), name="three", purpose=Purpose.EVAL))
        await until_consumed(parts)
        everything = await lines(http, "/groups")

        assert sorted(everything) == ["one", "three", "two"]
        assert await lines(http, "/groups?run_id=other") == ["two"]
        assert await lines(http, "/groups?purpose=eval") == ["three"]
        assert await lines(http, f"/groups?after={time.time() + 1}") == []
        async with http.get("/groups/one") as found:
            assert msgspec.json.decode(await found.read(), type=GroupMerged).group_id == "one"
        assert await status(http, "GET", "/groups/none") == 404
        assert await status(http, "GET", "/groups?colour=red") == 400
        assert await status(http, "GET", "/groups", headers={"authorization": "Bearer wrong"}) == 401


async def lines(http: aiohttp.ClientSession, path: str) -> list[str]:
    async with http.get(path) as answer:
        return [msgspec.json.decode(line, type=GroupMerged | GroupFailed).group_id async for line in answer.content]


async def status(http: aiohttp.ClientSession, method: str, path: str, **options: Any) -> int:
    async with http.request(method, path, **options) as answer:
        return answer.status


async def test_groups_come_as_msgpack_frames_where_asked_for(tmp_path: Path, config: Config) -> None:
    async with open_parts(tmp_path) as parts, client(parts, config) as http:
        await write(parts, group((1.0, 0.0)))
        await until_consumed(parts)
        async with http.get("/groups", headers={"accept": "application/x-msgpack"}) as answer:
            body = await answer.read()

        size = int.from_bytes(body[:4], "big")
        assert len(body) == 4 + size
        assert decode(body[4:]) == (await outcomes(parts))[0]
