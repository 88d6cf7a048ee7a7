"""Stored sessions, looked at and built again: from the log, and from their records where it was trimmed; damaged ones among them."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from tests.support.damages import by_kind, damages, recorded, renamed, trained
from tests.support.service_context import open_parts, operator
from tests.support.waiting import until

from evener.bus.embedded_store import BUS_FILE, OFFSET_BITS
from evener.bus.port import Header, Outgoing
from evener.client.session_views import Rebuilt, SessionSource, SessionView
from evener.proto.codec import BadRecord, decode, tag_of
from evener.proto.sessions import CallClosed, SessionSealed
from evener.proto.topics import HEADER_CRC, HEADER_SESSION, HEADER_TYPE, Topic
from evener.proto.trajectories import TrajectoryBuilt
from evener.reconstructor.config import Config
from evener.reconstructor.service import open_service
from evener.service.context import ServiceContext
from evener.service.events import EventLog


async def write(context: ServiceContext, session_id: str, log: Sequence[bytes]) -> None:
    """Write a session's records as its owner does."""
    events = EventLog(context.bus, context.blobs)
    await context.bus.send([await events.outgoing(Topic.SESSIONS, session_id, decode(data), session_id=session_id) for data in log])


async def write_raw(context: ServiceContext, session_id: str, log: Sequence[bytes]) -> None:
    """Write records as they are, be they events or not."""
    await context.bus.send([Outgoing(topic=Topic.SESSIONS, key=session_id, value=data, headers=headers(session_id, data)) for data in log])


def headers(session_id: str, data: bytes) -> tuple[Header, ...]:
    """Return what a record's headers would say."""
    try:
        return Header(HEADER_SESSION, session_id.encode()), Header(HEADER_TYPE, tag_of(decode(data)).encode())
    except BadRecord:
        return (Header(HEADER_SESSION, session_id.encode()),)


async def built(context: ServiceContext) -> list[TrajectoryBuilt]:
    """Return all of `trajectories.built`, in the order of the log."""
    events = EventLog(context.bus, context.blobs)
    found = [await events.event(record) async for record in context.bus.read(Topic.BUILT, 0)]
    return [event for event in found if isinstance(event, TrajectoryBuilt)]


@asynccontextmanager
async def reconstructing(context: ServiceContext) -> AsyncIterator[aiohttp.ClientSession]:
    """Run a reconstructor; yield an operator's client of it."""
    async with open_service(Config(), context) as service, operator(service.routes) as client:
        running = asyncio.ensure_future(service.run())
        try:
            yield client
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def until_built(context: ServiceContext, session_id: str) -> None:
    """Wait for a trajectory."""
    await until(lambda: built(context), lambda found: session_id in [one.session_id for one in found])


async def view(client: aiohttp.ClientSession, session_id: str) -> SessionView:
    async with client.get(f"/sessions/{session_id}") as answer:
        assert answer.status == 200, await answer.text()
        return msgspec.json.decode(await answer.read(), type=SessionView)


async def rebuild(client: aiohttp.ClientSession, **asked: Any) -> list[Rebuilt]:
    """Ask for a rebuild; return all answers."""
    async with client.post("/rebuild", json=asked) as answer:
        assert answer.status == 200, await answer.text()
        data, found = await answer.read(), []
    while data:
        size = int.from_bytes(data[:4], "big")
        found += [msgspec.msgpack.decode(data[4 : 4 + size], type=Rebuilt)] if size else []
        data = data[4 + size :]
    return found


def trim(folder: Path, context: ServiceContext, until: int) -> None:
    """Drop the first records of the one partition of `sessions`, as retention does."""
    assert context.bus.partitions_of(Topic.SESSIONS) == 1
    with sqlite3.connect(folder / "bus" / BUS_FILE) as file:
        (number,) = file.execute("SELECT number FROM log WHERE topic = ?", (Topic.SESSIONS,)).fetchone()
        file.execute("DELETE FROM record WHERE id >= ? AND id < ?", (number << OFFSET_BITS, (number << OFFSET_BITS) + until))
    file.close()


async def test_rebuilt_sessions_are_equal_from_the_log_and_from_their_records(tmp_path: Path) -> None:
    """The log first; where its beginning is gone, the blob: the same bytes, but for where they came from."""
    now = time.time()
    async with open_parts(tmp_path, partitions=1) as context:
        async with reconstructing(context) as client:
            await write(context, "a.0", recorded("a.0", now))
            await write(context, "b.0", recorded("b.0", now))
            await write(context, "c.0", recorded("c.0", now)[:-2])
            await until_built(context, "b.0")
            whole = await rebuild(client, sessions=["a.0", "b.0"], whole=True)
            seen = await view(client, "a.0")
        length = len(recorded())
        async with reconstructing(context) as client:
            await asyncio.to_thread(trim, tmp_path, context, length + 3)
            trimmed = await rebuild(client, sessions=["a.0", "b.0"], whole=True)
            seen_again = await view(client, "a.0")
            missing = await rebuild(client, sessions=["a.0", "nothing.0", "c.0"])
            open_one = await view(client, "c.0")
            by_time = await rebuild(client, since=now - 1)
            later, other_run = await rebuild(client, since=now + 60), await rebuild(client, run_id="other")
            per_call = await rebuild(client, run_id="run", strategy="per_call")

    assert [one.equal for one in whole] == [True, True]
    assert [one.source for one in whole] == [SessionSource.LOG] * 2
    assert [one.source for one in trimmed] == [SessionSource.RECORDS] * 2
    assert {one.session_id: one.trajectory for one in trimmed} == {one.session_id: one.trajectory for one in whole}
    assert (seen.source, seen_again.source) == (SessionSource.LOG, SessionSource.RECORDS)
    assert (seen_again.trajectory, seen_again.calls, seen_again.messages) == (seen.trajectory, seen.calls, seen.messages)
    assert [one.problem for one in missing] == ["no session 'nothing.0' in the log", "session c.0 has not ended yet", None]
    assert [(one.number, one.total) for one in missing] == [(1, 3), (2, 3), (3, 3)]
    assert open_one.trajectory is None
    assert open_one.preview is not None
    assert len(open_one.calls) == len(seen.calls)
    assert sorted(one.session_id for one in by_time) == ["a.0", "b.0"]
    assert (later, other_run) == ([], [])
    assert [(one.equal, len(one.digest)) for one in per_call] == [(None, 64)] * 2
    assert per_call[0].rows > whole[0].rows


async def test_rebuild_names_what_differs(tmp_path: Path) -> None:
    """A trajectory in the log that is not what the session says, and one that was never built."""
    async with open_parts(tmp_path, partitions=1) as context:
        log = recorded("a.0", time.time())
        async with reconstructing(context) as client:
            await write(context, "a.0", log)
            await until_built(context, "a.0")
            (true,) = await built(context)
            false = msgspec.structs.replace(true, session_id="b.0", answer="something else", rows_digest="0" * 64)
            await EventLog(context.bus, context.blobs).send(Topic.BUILT, "b.0", false, session_id="b.0", group_id="t")
            await write(context, "b.0", [renamed(data, "b.0", time.time()) for data in log])
            (differing,) = await rebuild(client, sessions=["b.0"])

    assert differing.equal is False
    assert {"answer", "rows_digest"} <= set(differing.differs)
    assert differing.recorded == "0" * 64


async def test_unreadable_records_stop_neither_the_stream_nor_their_session(tmp_path: Path) -> None:
    """Every damage once, each to a session of its own with a healthy one behind it: all that were sealed are built, once."""
    now = time.time()
    kinds = by_kind(damages(recorded("d.0", now)))
    chosen = [(kind, *found[len(found) // 2]) for kind, found in kinds.items()]
    async with open_parts(tmp_path, partitions=1) as context:
        for number, (_, _, log) in enumerate(chosen):
            await write_raw(context, "d.0", [b"?"])  # of a session that is not open: nobody's inconsistency
            await write_raw(context, f"d{number}.0", [relabelled(data, f"d{number}.0", now) for data in log])
            await write(context, f"h{number}.0", recorded(f"h{number}.0", now))
        async with reconstructing(context) as client:
            await until_built(context, f"h{len(chosen) - 1}.0")
            found = {one.session_id: one for one in await built(context)}
            again = await rebuild(client, since=now - 1)
    certain = {key[1:] for key in trained(found["h0.0"])}

    assert sorted(found) == sorted([f"h{number}.0" for number in range(len(chosen))] + [f"d{number}.0" for number in range(len(chosen))])
    for number, (kind, where, _) in enumerate(chosen):
        assert found[f"h{number}.0"].inconsistencies == ()
        assert {key[1:] for key in trained(found[f"d{number}.0"])} <= certain, (kind, where)
    assert {one.session_id for one in again if not one.equal} == set()


def relabelled(data: bytes, session_id: str, at: float) -> bytes:
    """Return a record of the damaged session under its own name; foreign ones and rubbish stay what they are."""
    try:
        event: Any = decode(data)
    except BadRecord:
        return data
    return renamed(data, session_id, at) if event.session_id == "d.0" else data


async def test_flipped_bit_is_found_by_the_record_itself(tmp_path: Path) -> None:
    """Where the log does not notice, the checksum does: the record is a dead letter, its tokens are inconsistent, the rest is delivered."""
    async with open_parts(tmp_path, partitions=1) as context:
        log = recorded("a.0", time.time())
        await write(context, "a.0", log)
        closed = max(at for at, data in enumerate(log) if isinstance(decode(data), CallClosed))
        records = [record async for record in context.bus.read(Topic.SESSIONS, 0)]
        assert any(header.name == HEADER_CRC for header in records[closed].headers)
        value = bytearray(records[closed].value or b"")
        place = value.index(b"logprobs") + 20
        value[place] ^= 1
        await asyncio.to_thread(overwrite, tmp_path, closed, bytes(value))
        async with reconstructing(context):
            await until_built(context, "a.0")
        (trajectory,) = await built(context)
        assert await context.bus.end(Topic.DEAD_LETTERS, 0) == 1

    assert f"record {closed}: record sessions/0@{closed} is not as it was written" in trajectory.inconsistencies[0]
    assert trajectory.accounting.delivered > 0


def overwrite(folder: Path, offset: int, value: bytes) -> None:
    """Change a record under the bus."""
    with sqlite3.connect(folder / "bus" / BUS_FILE) as file:
        (number,) = file.execute("SELECT number FROM log WHERE topic = ?", (Topic.SESSIONS,)).fetchone()
        file.execute("UPDATE record SET value = ? WHERE id = ?", (value, (number << OFFSET_BITS) + offset))
    file.close()


async def test_lost_start_is_made_good_by_the_seal(tmp_path: Path) -> None:
    """What the session was to do stands in both."""
    async with open_parts(tmp_path, partitions=1) as context:
        log = recorded("a.0", time.time())
        assert isinstance(decode(log[-1]), SessionSealed)
        await write(context, "a.0", log[-1:])
        async with reconstructing(context):
            await until_built(context, "a.0")
        (trajectory,) = await built(context)

    assert trajectory.spec.group_id == "t"
    assert trajectory.rows == ()
    assert trajectory.accounting.excluded.keys() == {"inconsistent"}
