"""The reconstructor on the embedded bus: its behaviour when it starts again."""

import asyncio
import time
from pathlib import Path

from tests.support.builders import given_up, sealed, spec
from tests.support.service_context import open_parts
from tests.support.waiting import until

from evener.bus.port import Header, Outgoing
from evener.proto.codec import decode
from evener.proto.ids import group_of
from evener.proto.reasons import TerminationReason
from evener.proto.topics import HEADER_SESSION, Topic
from evener.proto.trajectories import TrajectoryBuilt
from evener.reconstructor.config import Config
from evener.reconstructor.service import open_service
from evener.service.context import ServiceContext
from evener.service.events import EventLog
from evener.tokens.rows import digest


async def give_up(context: ServiceContext, name: str) -> None:
    """Write the first record of a session that never starts."""
    event = given_up(name, spec(group_of("t")), TerminationReason.CANCELLED, attempt=0, at=time.time())
    await EventLog(context.bus, context.blobs).send(Topic.SESSIONS, name, event, session_id=name)


async def seal(context: ServiceContext, name: str) -> None:
    """Write its last one."""
    event = sealed(name, TerminationReason.CANCELLED, attempt=0, at=time.time(), rows_digest=digest(()))
    await EventLog(context.bus, context.blobs).send(Topic.SESSIONS, name, event, session_id=name)


async def built(context: ServiceContext) -> list[str]:
    """Return the ids of the sessions that were built, in the order of the log."""
    events = [decode(record.value or b"") async for record in context.bus.read(Topic.BUILT, 0)]
    return [event.session_id for event in events if isinstance(event, TrajectoryBuilt)]


async def reconstruct_until(context: ServiceContext, name: str) -> None:
    """Run a reconstructor until it has built a session and noted how far it came."""
    async with open_service(Config(), context) as service:
        running = asyncio.ensure_future(service.run())
        await until(lambda: built(context), lambda found: name in found)
        await until(lambda: context.bus.committed("reconstructor", Topic.SESSIONS, 0))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_session_that_overlaps_an_earlier_seal_is_not_built_again_in_part(tmp_path: Path) -> None:
    """A new start reads from the first young seal on, and of `b` the seal alone; what was built before stays as it was."""
    async with open_parts(tmp_path, partitions=1) as context:
        await give_up(context, "a")
        await give_up(context, "b")
        await seal(context, "a")
        await seal(context, "b")
        await reconstruct_until(context, "b")
        await give_up(context, "c")
        await seal(context, "c")
        await reconstruct_until(context, "c")

        assert await context.bus.end(Topic.DEAD_LETTERS, 0) == 0
        assert await built(context) == ["a", "b", "c"]


async def test_damaged_record_is_given_up_and_its_session_counted(tmp_path: Path) -> None:
    """The session is built without it."""
    async with open_parts(tmp_path, partitions=1) as context:
        await give_up(context, "a")
        damaged = Outgoing(topic=Topic.SESSIONS, key="a", value=b"\x81", headers=(Header(HEADER_SESSION, b"a"),))
        await context.bus.send([damaged])
        await seal(context, "a")
        await reconstruct_until(context, "a")
        value = context.registry.get_sample_value

        assert await context.bus.end(Topic.DEAD_LETTERS, 0) == 1
        assert value("evener_dead_letters_total", {"service": "reconstructor", "topic": "sessions"}) == 1
        assert value("evener_inconsistent_trajectories_total") == 1
