"""The only writer of a partition: encodes what calls hand over, commits it in order, and folds it into the sessions."""

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

import structlog
from msgspec import Struct

from evener.blobs.port import BlobError
from evener.bus.port import BusError, Fenced, GroupOffset, NotCommitted, Outgoing, Producer, RecordTooLarge
from evener.proto.codec import AnyEvent, tag_of
from evener.proto.topics import Topic
from evener.provider_gateway.session import SessionRuntime
from evener.runtime.faults import point
from evener.service.events import EventLog
from evener.service.telemetry import Metrics

BATCH_BYTES: Final = 4 << 20
BATCH_ENTRIES: Final = 64
"""The limit of entries in a batch: whoever waits for one goes on at the same iteration of the event loop."""
CRASHED: Final = "the writer of the partition crashed"

log = structlog.get_logger()


class Entry(Struct, eq=False, kw_only=True):
    """Events of one session that are committed together."""

    session: SessionRuntime
    events: Sequence[AnyEvent]
    owed: Sequence[AnyEvent]
    """The events that the session owes to the log if this commit fails."""
    offsets: Sequence[GroupOffset]
    committed: asyncio.Future[None]
    records: Sequence[Outgoing] = ()

    @property
    def size(self) -> int:
        """The size of its values in bytes."""
        return sum(len(record.value or b"") for record in self.records)


class PartitionWriter:
    """Commits in batches: entries that arrive during a commit share the next one.

    A cancelled caller leaves its future; its entry is committed and folded all the same.
    """

    def __init__(self, producer: Producer, events: EventLog, metrics: Metrics) -> None:
        self._producer = producer
        self._events = events
        self._metrics = metrics
        self._queue: list[Entry] = []
        self._wake = asyncio.Event()
        self._offloading: set[asyncio.Task[None]] = set()
        """Entries whose large fields are being moved to the blob store. Others do not wait for them."""
        self._closed: BusError | None = None
        """Why nothing is committed any more."""
        self._crashed: Exception | None = None
        """The bug that kept committed events out of their session: only an owner that reads the log again knows them."""
        self._task = asyncio.create_task(self._run(), name=f"writer of {producer.transactional_id}")

    def commit(
        self, session: SessionRuntime, events: Sequence[AnyEvent], *, owed: Sequence[AnyEvent] = (), offsets: Sequence[GroupOffset] = ()
    ) -> asyncio.Future[None]:
        """Hand over events of a session, to be committed together after what the session owes. Events that the log holds are skipped.

        The future is done when they are committed and folded. It raises what the bus or the blob store raises, or a bug on the way there;
        then nothing is folded, and the session owes `owed` in addition to what it owed before.
        """
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        owing = session.missing(session.owed)
        due = [*owing, *session.missing(events)]
        records = [self._events.record(Topic.SESSIONS, session.session_id, event, session_id=session.session_id) for event in due]
        entry = Entry(session=session, events=due, owed=[*owing, *owed], offsets=offsets, committed=committed)
        session.owed = []
        if not due:
            committed.set_result(None)
            return committed
        session.pending.add(committed)
        committed.add_done_callback(session.pending.discard)
        whole = [record for record in records if record is not None]
        if len(whole) == len(due):
            entry.records = whole
            self._put(entry)
        else:
            offloading = asyncio.create_task(self._offload(entry))
            self._offloading.add(offloading)
            offloading.add_done_callback(self._offloading.discard)
        return asyncio.shield(committed)  # a caller that is cancelled cancels only its own wait

    async def prove(self, offsets: Sequence[GroupOffset]) -> None:
        """Return if the producer's id is not taken over: it commits these offsets. Raises Fenced, NotCommitted."""
        await self._producer.commit([], offsets)

    async def lost(self) -> None:
        """Wait until the writer has ended. Raises Fenced when another instance has taken the partition over."""
        await asyncio.wait([self._task])
        self._task.result()
        if isinstance(self._closed, Fenced):
            raise self._closed

    async def aclose(self) -> None:
        """Commit the queued entries. Entries that wait for the blob store, and later ones, fail."""
        self._closed = self._closed or NotCommitted("the partition was let go")
        for offloading in self._offloading:
            offloading.cancel()
        self._wake.set()
        await asyncio.wait([self._task, *self._offloading])

    async def _run(self) -> None:
        batch: list[Entry] = []
        try:
            while batch := await self._next_batch():
                await self._commit(batch)
                batch = []  # or it would stay in memory
        except BaseException:  # nobody may wait for a writer that crashed
            self._closed = self._closed or NotCommitted(CRASHED)
            self._fail([entry for entry in (*batch, *self._queue) if not entry.committed.done()], self._closed)
            raise

    async def _next_batch(self) -> list[Entry]:
        """Wait for entries and take a batch, empty when the writer is closed. Raises the bug of a session that cannot take events in."""
        while not self._queue and self._closed is None and self._crashed is None:
            self._wake.clear()
            await self._wake.wait()
        if self._crashed is not None:
            raise self._crashed
        return self._take()

    def _take(self) -> list[Entry]:
        """Take a batch off the queue, at least one entry if there is any."""
        size = count = 0
        for entry in self._queue:
            size += entry.size
            if count == BATCH_ENTRIES or (count and size > BATCH_BYTES):
                break
            count += 1
        batch, self._queue = self._queue[:count], self._queue[count:]
        return batch

    async def _commit(self, batch: Sequence[Entry]) -> None:
        await point("gateway.commit")
        began = time.perf_counter()
        records = [record for entry in batch for record in entry.records]
        try:
            positions = await self._producer.commit(records, [offset for entry in batch for offset in entry.offsets])
        except RecordTooLarge as error:
            if len(batch) == 1:
                self._fail(batch, error)
                return
            for entry in batch:  # each alone, so that one failure does not fail the others
                await self._commit([entry])
        except BusError as error:
            self._fail(batch, error)
            if isinstance(error, Fenced):
                self._closed, waiting, self._queue = error, self._queue, []
                self._fail(waiting, error)
        else:
            self._metrics.commit_seconds.observe(time.perf_counter() - began)
            offsets = iter([position.offset for position in positions])
            for entry in batch:
                entry.session.change(partial(self._fold, entry, [(event, next(offsets)) for event in entry.events]))

    def _fold(self, entry: Entry, events: Sequence[tuple[AnyEvent, int]]) -> None:
        try:
            entry.session.fold(events, time.time())
        except Exception as error:  # noqa: BLE001 - the writer raises it, also where a reader's call folds
            self._crashed = error
            self._wake.set()
            self._fail([entry], NotCommitted(CRASHED))
        else:
            if not entry.committed.done():
                entry.committed.set_result(None)

    async def _offload(self, entry: Entry) -> None:
        session_id = entry.session.session_id
        try:
            entry.records = [
                await self._events.outgoing(Topic.SESSIONS, session_id, event, session_id=session_id) for event in entry.events
            ]
        except asyncio.CancelledError:
            self._fail([entry], self._closed or NotCommitted("the partition was let go"))
        except Exception as error:  # nobody may wait for an entry that a bug stopped
            if not isinstance(error, BlobError):
                log.exception("offload_crashed", session_id=session_id)
            self._fail([entry], error)
        else:
            self._put(entry)

    def _put(self, entry: Entry) -> None:
        if self._closed is not None:
            self._fail([entry], self._closed)
        else:
            self._queue.append(entry)
            self._wake.set()

    def _fail(self, entries: Sequence[Entry], error: Exception) -> None:
        for entry in entries:
            session = entry.session
            session.owed = [*entry.owed, *session.owed]
            log.error("not_committed", session_id=session.session_id, events=[tag_of(event) for event in entry.events], error=str(error))
            if not entry.committed.done():
                entry.committed.set_exception(error)
                entry.committed.exception()  # its caller may be gone
