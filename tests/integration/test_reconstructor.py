"""The reconstructor on the embedded bus: what it does when it starts again."""

import asyncio
import time
from pathlib import Path

from tests.builders import spec
from tests.parts import open_parts

from evener.proto.codec import decode
from evener.proto.ends import End
from evener.proto.ids import group_of
from evener.proto.sessions import SessionGivenUp, SessionSealed
from evener.proto.topics import Topic
from evener.proto.trajectories import TrajectoryBuilt
from evener.reconstructor.config import Config
from evener.reconstructor.service import open_service
from evener.service.events import EventLog
from evener.service.parts import Parts
from evener.tokens.rows import digest

SECONDS = 10.0


async def give_up(parts: Parts, name: str) -> None:
    """Write the first record of a session that never starts."""
    event = SessionGivenUp(session_id=name, attempt=0, end=End.CANCELLED, given_up_at=time.time(), spec=spec(group_of("t")))
    await EventLog(parts.bus, parts.blobs).send(Topic.SESSIONS, name, event, session_id=name)


async def seal(parts: Parts, name: str) -> None:
    """Write its last one."""
    event = SessionSealed(
        session_id=name, attempt=0, end=End.CANCELLED, rows_digest=digest(()), calls=0, sampled_tokens=0, sealed_at=time.time()
    )
    await EventLog(parts.bus, parts.blobs).send(Topic.SESSIONS, name, event, session_id=name)


async def built(parts: Parts) -> list[str]:
    """Return the ids of the sessions that were built, in the order of the log."""
    events = [decode(record.value or b"") async for record in parts.bus.read(Topic.BUILT, 0)]
    return [event.session_id for event in events if isinstance(event, TrajectoryBuilt)]


async def reconstruct_until(parts: Parts, name: str) -> None:
    """Run a reconstructor until it has built a session and noted how far it came."""
    async with open_service(Config(), parts) as service:
        running = asyncio.ensure_future(service.run())
        async with asyncio.timeout(SECONDS):
            while name not in await built(parts) or not await parts.bus.committed("reconstructor", Topic.SESSIONS, 0):  # noqa: ASYNC110 - the log is asked
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_session_that_overlaps_an_earlier_seal_is_not_built_again_in_part(tmp_path: Path) -> None:
    """A start anew reads from the first young seal on, and of `b` the seal alone; what was built before stays as it was."""
    async with open_parts(tmp_path, partitions=1) as parts:
        await give_up(parts, "a")
        await give_up(parts, "b")
        await seal(parts, "a")
        await seal(parts, "b")
        await reconstruct_until(parts, "b")
        await give_up(parts, "c")
        await seal(parts, "c")
        await reconstruct_until(parts, "c")

        assert await parts.bus.end(Topic.DEAD_LETTERS, 0) == 0
        assert await built(parts) == ["a", "b", "c"]
