"""The writer of a partition, on the embedded bus."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tests.support.builders import call_failed
from tests.support.service_context import open_parts
from tests.support.world import World, user

from evener.blobs.open import open_blobs
from evener.bus.port import NotCommitted
from evener.proto.blobs import INLINE_LIMIT_BYTES, BlobRef
from evener.proto.codec import AnyEvent
from evener.proto.reasons import CallFailure
from evener.proto.topics import Topic
from evener.provider_gateway.session import SessionRuntime
from evener.provider_gateway.writer import BATCH_ENTRIES, PartitionWriter
from evener.service.events import EventLog
from evener.service.telemetry import metrics


class Broken:
    """A blob store with a bug."""

    def __init__(self) -> None:
        blobs = open_blobs("memory://")
        self.get, self.has, self.remove = blobs.get, blobs.has, blobs.remove

    async def put(self, data: bytes) -> BlobRef:
        raise ZeroDivisionError(len(data))


async def test_a_bug_on_the_way_to_the_blob_store_is_told_to_whoever_waits(tmp_path: Path) -> None:
    """A call waited for its commit for ever, and its partition could not be let go."""
    async with open_parts(tmp_path) as context:
        producer = await context.bus.producer("gateway-0")
        writer = PartitionWriter(producer, EventLog(context.bus, Broken()), metrics(context.registry))
        session = SessionRuntime("t.0")
        _, large = World().open([user("x" * 2 * INLINE_LIMIT_BYTES)])
        owed = call_failed(large, CallFailure.CANCELLED)
        with capture_logs() as logged, pytest.raises(ZeroDivisionError):
            await writer.commit(session, [large], owed=[owed])
        assert "offload_crashed" in [entry["event"] for entry in logged]
        assert (session.pending, session.owed) == (set(), [owed])
        await writer.aclose()


class Unfoldable(SessionRuntime):
    """A session with a bug."""

    def fold(self, events: Sequence[tuple[AnyEvent, int]], now: float) -> None:
        raise ZeroDivisionError(events, now)


@pytest.mark.parametrize("looked_at", [False, True])
async def test_writer_whose_events_a_session_cannot_take_in_ends_with_the_bug(tmp_path: Path, *, looked_at: bool) -> None:
    """While a thread read the session, the bug ended the reader's call: the writer went on, and the commit was waited for without end."""
    async with open_parts(tmp_path) as context:
        producer = await context.bus.producer("gateway-0")
        writer = PartitionWriter(producer, EventLog(context.bus, open_blobs("memory://")), metrics(context.registry))
        session, let_go = Unfoldable("t.0"), threading.Event()
        looking = asyncio.create_task(session.look(let_go.wait if looked_at else bool))
        _, opened = World().open([user("hello")])
        committing = asyncio.ensure_future(writer.commit(session, [opened]))
        await anext(aiter(context.bus.follow(Topic.SESSIONS, context.bus.partition_of(Topic.SESSIONS, "t.0"), 0)))
        let_go.set()
        await looking
        with pytest.raises(NotCommitted):
            await committing
        with pytest.raises(ZeroDivisionError):
            await writer.lost()
        assert not session.pending


class Counting(SessionRuntime):
    """A session that counts what it takes in."""

    folded = 0

    def fold(self, events: Sequence[tuple[AnyEvent, int]], now: float) -> None:
        super().fold(events, now)
        Counting.folded += 1


async def test_many_entries_that_come_together_are_committed_in_several_batches(tmp_path: Path) -> None:
    """Whoever waits for them would go on all at once: the seals of a thousand sessions."""
    async with open_parts(tmp_path) as context:
        producer = await context.bus.producer("gateway-0")
        writer = PartitionWriter(producer, EventLog(context.bus, open_blobs("memory://")), metrics(context.registry))
        _, opened = World().open([user("hello")])
        committing = [writer.commit(Counting(f"t.{number}"), [opened]) for number in range(3 * BATCH_ENTRIES)]
        await committing[0]
        first = Counting.folded
        await asyncio.gather(*committing)
        await writer.aclose()
    assert (first, Counting.folded) == (BATCH_ENTRIES, 3 * BATCH_ENTRIES)
