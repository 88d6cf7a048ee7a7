"""Which ended groups are asked for, and what is known of one group or session while it is under way and after its end."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from msgspec import structs
from tests.support.builders import T0, decided, group, group_ended
from tests.support.service_context import open_parts

from evener.bus.port import Outgoing
from evener.proto.spec import Purpose
from evener.proto.state import GroupState
from evener.proto.topics import Topic
from evener.proto.trajectories import TrajectoryScored
from evener.service.context import ServiceContext
from evener.service.events import EventLog
from evener.trainer_bridge.core import close, fold
from evener.trainer_bridge.groups import GroupQuery, GroupReader

SESSIONS = group((1.0, 0.0))
NAME = "fix-the-bug"


@pytest.mark.parametrize(
    ("query", "matches"),
    [
        (GroupQuery(), (True, True)),
        (GroupQuery(run_id="default"), (True, True)),
        (GroupQuery(run_id="other"), (False, False)),
        (GroupQuery(purpose=Purpose.EVAL), (True, True)),
        (GroupQuery(purpose=Purpose.TRAIN), (False, False)),
        (GroupQuery(after=T0 - 1), (True, True)),
        (GroupQuery(after=T0), (False, False)),
        (GroupQuery(run_id="default", purpose=Purpose.EVAL, after=T0 + 1), (False, False)),
    ],
)
def test_group_matches_what_is_asked_whichever_way_it_ended(query: GroupQuery, matches: tuple[bool, bool]) -> None:
    """`after` is the end of the last group that the asker has seen."""
    merged = group_ended("t", (1.0, 0.0), purpose=Purpose.EVAL)
    failed = group_ended("t", (1.0, 0.0), purpose=Purpose.EVAL, reason="too few")

    assert (query.matches(merged), query.matches(failed)) == matches


class Bridge:
    """Writes what the bridge writes of one group, step by step, and reads it as an endpoint does."""

    def __init__(self, context: ServiceContext) -> None:
        self._bus = context.bus
        self._blobs = context.blobs
        self._events = EventLog(context.bus, context.blobs)
        self._state: GroupState | None = None
        self.reader = GroupReader(context.bus, self._events)

    async def score(self, sessions: Sequence[TrajectoryScored]) -> None:
        """Let these be scored and folded."""
        for session in sessions:
            name = session.trajectory.session_id
            await self._events.send(Topic.SCORED, NAME, session, session_id=name, group_id=NAME)
            folded = fold(self._state, session)
            assert folded is not None
            last = structs.replace(folded.scored[-1], session=await self._events.store(session))
            self._state = structs.replace(folded, scored=(*folded.scored[:-1], last))
            await self._events.send(Topic.BRIDGE_STATE, NAME, self._state, group_id=NAME)

    async def end(self, *, without: int | None = None) -> None:
        """End the group, perhaps without a session, and note where its record stands."""
        event = decided(SESSIONS)
        assert event is not None
        assert self._state is not None
        members = tuple(structs.replace(one, scored=None) if number == without else one for number, one in enumerate(event.members))
        at = await self._events.send(Topic.MERGED, NAME, structs.replace(event, members=members), group_id=NAME)
        self._state = close(self._state, T0, at.offset)
        await self._events.send(Topic.BRIDGE_STATE, NAME, self._state, group_id=NAME)

    async def remove_blobs(self) -> None:
        """Remove what only the state names, as when the run is deleted."""
        assert self._state is not None
        for member in self._state.scored:
            assert member.session is not None
            assert await self._blobs.remove(member.session.digest, unused_seconds=0.0)

    async def forget(self) -> None:
        """Forget the group, as after its retention."""
        await self._bus.send([Outgoing(topic=Topic.BRIDGE_STATE, key=NAME, value=None)])


@pytest.fixture
async def bridge(tmp_path: Path) -> AsyncIterator[Bridge]:
    async with open_parts(tmp_path, partitions=1) as context:
        yield Bridge(context)


async def test_group_that_is_under_way_has_no_end_but_scores(bridge: Bridge) -> None:
    await bridge.score(SESSIONS[:1])

    assert await bridge.reader.one(NAME) is None
    scored, end = await bridge.reader.session(f"{NAME}.0")
    assert (scored is not None and scored.reward, end) == (1.0, None)
    assert await bridge.reader.session(f"{NAME}.1") == (None, None)


async def test_group_that_ended_is_found_at_the_place_that_its_state_names(bridge: Bridge) -> None:
    """Also by a reader that knew the group while it was under way."""
    await bridge.score(SESSIONS)
    assert await bridge.reader.one(NAME) is None
    await bridge.end()

    merged = await bridge.reader.one(NAME)
    assert merged is not None
    assert [member.reward for member in merged.members] == [1.0, 0.0]
    scored, end = await bridge.reader.session(f"{NAME}.1")
    assert scored is not None
    assert end is not None
    assert (scored.reward, end.group_id) == (0.0, NAME)


async def test_session_that_came_after_its_groups_end_is_found(bridge: Bridge) -> None:
    """No group's record holds it; the group's state names its place, as long as its run is not deleted."""
    await bridge.score(SESSIONS[:1])
    await bridge.end(without=1)
    await bridge.score(SESSIONS[1:])

    scored, end = await bridge.reader.session(f"{NAME}.1")
    assert (scored is not None and scored.reward, end is not None and end.group_id) == (0.0, NAME)
    await bridge.remove_blobs()
    assert await bridge.reader.session(f"{NAME}.1") == (None, end)


async def test_nothing_is_searched_for_a_group_that_is_forgotten(bridge: Bridge) -> None:
    """Its records may stand anywhere in weeks of log."""
    await bridge.score(SESSIONS)
    await bridge.end()
    await bridge.forget()

    assert await bridge.reader.one(NAME) is None
    assert await bridge.reader.session(f"{NAME}.0") == (None, None)


async def test_group_that_nobody_scored_is_unknown(bridge: Bridge) -> None:
    assert await bridge.reader.one("nosuch") is None
    assert await bridge.reader.session("nosuch.0") == (None, None)
