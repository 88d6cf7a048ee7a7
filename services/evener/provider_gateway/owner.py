"""The one writer of a partition of `sessions`: takes it over, follows it, commits calls, seals sessions.

Whoever takes the partition over initialises the same transactional id, which fences this one for good: its commits fail, so it
can tell nobody anything.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

import structlog

from evener.bus.port import Bus, Fenced, GroupOffset, Outgoing, Position, Producer, Record
from evener.proto.codec import AnyEvent, BadRecord, tag_of
from evener.proto.ends import CONSEQUENCES, CallFailure, End
from evener.proto.errors import Recoverable
from evener.proto.sessions import (
    AttemptEnded,
    CallClosed,
    CallDelivered,
    CallFailed,
    CallOpened,
    CallUndelivered,
    HarnessExited,
    SessionGivenUp,
    SessionSealed,
    SessionStarted,
)
from evener.proto.topics import HEADER_SESSION, HEADER_TYPE, Topic
from evener.proto.trajectories import Accounting
from evener.provider_gateway.core import enforced
from evener.provider_gateway.live import Live
from evener.provider_gateway.threads import PLACING
from evener.service.events import EventLog, header
from evener.service.faults import point
from evener.service.off_loop import to_its_end
from evener.service.telemetry import Metrics
from evener.tokens.doubts import fingerprints
from evener.tokens.mark import LowWater
from evener.tokens.rows import RULE, Cut, cut, digest
from evener.tokens.session import Session, verdict

GROUP: Final = "provider-gateway"
"""Consumer group: divides the partitions, and holds each one's low-water mark."""
OWN_EVENTS: Final = (CallOpened, CallClosed, CallFailed, CallUndelivered, CallDelivered, AttemptEnded, SessionSealed)
OWN_TAGS: Final = frozenset(tag_of(event).encode() for event in OWN_EVENTS)
"""Written by the owner alone, and folded when committed; the tail skips them."""

ENDING_PAUSE_SECONDS: Final = 0.2
ENDING_PAUSE_MOST_SECONDS: Final = 5.0

log = structlog.get_logger()


class Owner:
    """One partition, owned."""

    def __init__(self, bus: Bus, events: EventLog, metrics: Metrics, partition: int, producer: Producer) -> None:
        self._metrics = metrics
        self.partition = partition
        self.lives: dict[str, Live] = {}
        self._water = LowWater()
        self._bus = bus
        self._events = events
        self._producer = producer
        self._next = 0
        """Offset after the last record that was read."""
        self._read_on = asyncio.Event()
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks: asyncio.TaskGroup | None = None

    @classmethod
    async def take_over(cls, bus: Bus, events: EventLog, metrics: Metrics, partition: int) -> "Owner":
        """Fence the earlier owner, read what it left, close its open calls, and end what has exited."""
        producer = await bus.producer(f"gateway-{partition}")
        owner = cls(bus, events, metrics, partition, producer)
        start = await bus.committed(GROUP, Topic.SESSIONS, partition)
        owner._next = start if start is not None else await bus.beginning(Topic.SESSIONS, partition)
        async for record in bus.read(Topic.SESSIONS, partition, owner._next):
            await owner._fold(record, replay=True)
        for live in list(owner.lives.values()):
            await owner._fail_open_calls(live, CallFailure.OWNER_LOST, "the gateway was lost while the call was open")
            await point("gateway.recovering")
            await owner.end_if_due(live)
        log.info("partition_taken_over", partition=partition, sessions=len(owner.lives), next_offset=owner._next)
        await point("gateway.taken_over")
        return owner

    async def serve(self) -> None:
        """Follow the tail and write ends until cancelled. Raises Fenced when another instance took the partition over."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                tasks.create_task(self._follow())
                tasks.create_task(self._watch())
        except* Fenced as lost:
            msg = f"partition {self.partition} of sessions was taken over"
            raise Fenced(msg) from lost

    def is_sealed(self, session_id: str) -> bool:
        """Return whether this session is known to have ended."""
        return self._water.is_sealed(session_id)

    async def passed(self, offset: int, seconds: float) -> bool:
        """Wait until the tail has passed `offset`; return False after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                while self._next <= offset:
                    self._read_on.clear()
                    await self._read_on.wait()
        except TimeoutError:
            return False
        return True

    async def commit(self, live: Live, events: Sequence[AnyEvent], offsets: Sequence[GroupOffset] = ()) -> None:
        """Commit a session's events together, after those that it owes. Raises what the bus raises; then nothing is folded in.

        A cancelled caller waits all the same, once the log was asked: what is in the log must be in the fold.
        """
        owed, live.owed = live.owed, []
        due = [*owed, *events]
        session_id = live.session.session_id
        try:
            records = [await self._events.outgoing(Topic.SESSIONS, session_id, event, session_id=session_id) for event in due]
            await to_its_end(self._commit(live, due, records, offsets))
        finally:
            live.owed = [event for event in owed if not live.session.has_ended(event.call_id)] + live.owed

    async def end_if_due(self, live: Live) -> None:
        """If the attempt or the session has ended: stop what is open, then write AttemptEnded or the seal."""
        session = live.session
        async with live.ending:
            if (
                session.sealed is not None
                or (session.attempt in session.ended and session.given_up is None)
                or verdict(session, None) is None
            ):
                return
            await asyncio.gather(*_cancel_flights(live), return_exceptions=True)
            if live.owed:
                await self.commit(live, [])
            await self._fail_open_calls(live, CallFailure.CANCELLED, "the session ended")
            found = verdict(session, enforced(session))
            if found is not None:
                await self._write_end(live, *found)

    async def aclose(self) -> None:
        """Break off what is in flight, for the next owner to sample again, and let the transactional id go."""
        flights = [flight for live in self.lives.values() for flight in live.flights.values()]
        for flight in flights:
            flight.break_off()
        await asyncio.gather(*(flight.task for flight in flights if flight.task is not None), return_exceptions=True)
        await self._producer.aclose()

    async def _commit(self, live: Live, events: Sequence[AnyEvent], records: Sequence[Outgoing], offsets: Sequence[GroupOffset]) -> None:
        await point("gateway.commit")
        began = time.perf_counter()
        try:
            positions = await self._producer.commit(records, offsets)
        except Fenced as lost:
            if not self._broken.done():
                self._broken.set_exception(lost)
            raise
        self._metrics.commit_seconds.observe(time.perf_counter() - began)
        async with live.changing:
            await live.fold([(event, position.offset) for event, position in zip(events, positions, strict=True)], time.time())

    async def _write_end(self, live: Live, end: End, detail: str) -> None:
        session = live.session
        now = time.time()
        if CONSEQUENCES[end].run_again and session.given_up is None:
            await self.commit(
                live,
                [AttemptEnded(session_id=session.session_id, attempt=session.attempt, end=end, detail=detail, ended_at=now)],
            )
            log.info("attempt_ended", session_id=session.session_id, attempt=session.attempt, end=end)
            return
        async with live.changing:
            made, prints, rows_digest = await PLACING.run(self._cut, session, end)
        seal = SessionSealed(
            session_id=session.session_id,
            attempt=session.attempt,
            end=end,
            detail=detail,
            rows_digest=rows_digest,
            rule=RULE,
            calls=sum(call.closed is not None for call in session.forest.calls.values()),
            sampled_tokens=session.sampled_tokens(),
            sealed_at=now,
            fingerprints=prints,
            spec=session.spec,
        )
        before = self._next
        mark = self._water.mark(before, now, without=session.session_id)
        await self.commit(live, [seal], [GroupOffset(GROUP, Position(Topic.SESSIONS, self.partition, mark))])
        for reason, tokens in made.accounting.left_out.items():
            self._metrics.tokens_masked.labels(reason).inc(tokens)
        await point("gateway.sealed")
        self._forget(session.session_id, before, now)
        log.info("session_sealed", session_id=session.session_id, end=end, calls=seal.calls, sampled=seal.sampled_tokens)

    def _cut(self, session: Session, end: End) -> tuple[Cut, bytes, str]:
        """Cut the rows for the seal, take the fingerprints, and the digest of the rows.

        A session that cannot be cut is sealed all the same, without rows: others must go on.
        """
        try:
            made = cut(session, end)
            return made, b"".join(fingerprints(session.forest, session.attempt, end).values()), digest(made.rows)
        except Exception:  # the one place where a session's damage is caught
            log.exception("rows_not_cut", session_id=session.session_id)
            return Cut(rows=(), branches=(), fates={}, accounting=Accounting()), b"", digest(())

    def _forget(self, session_id: str, offset: int, at: float) -> None:
        self.lives.pop(session_id, None)
        self._water.sealed(session_id, offset, at)

    async def _fold(self, record: Record, *, replay: bool) -> None:
        self._next = record.offset + 1
        session_id = (header(record, HEADER_SESSION) or b"").decode(errors="replace") or record.key
        if self._water.is_sealed(session_id):
            return
        if not replay and header(record, HEADER_TYPE) in OWN_TAGS:
            return  # neither decoded nor fetched: the tail must not wait for what this owner has folded in already
        try:
            event = await self._events.event(record)
        except BadRecord as bad:
            await self._events.dead_letter("provider_gateway", record, str(bad))
            return
        live = self.lives.get(session_id) or Live(session_id)
        counted = live.session.apply(event, offset=record.offset, record_at=record.timestamp_ms / 1000)
        if live.session.sealed is not None:
            self._forget(session_id, record.offset, live.session.sealed.sealed_at)
        elif counted:
            self.lives[session_id] = live
            self._water.opened(session_id, record.offset)
            if not replay:
                self._after(live, event)

    def _after(self, live: Live, event: AnyEvent) -> None:
        match event:
            case SessionStarted():
                _cancel_flights(live)  # they end by themselves: the tail does not wait for their commits
            case HarnessExited() | SessionGivenUp():
                if self._tasks is not None:
                    self._tasks.create_task(self._end_at_last(live))
            case _:
                pass

    async def _end_at_last(self, live: Live) -> None:
        """Write the end, however long the log is down: nobody else may."""
        pause = ENDING_PAUSE_SECONDS
        while True:
            try:
                return await self.end_if_due(live)
            except Recoverable as error:
                log.warning("end_not_committed", session_id=live.session.session_id, error=str(error))
                await asyncio.sleep(pause)
                pause = min(2 * pause, ENDING_PAUSE_MOST_SECONDS)

    async def _follow(self) -> None:
        async for batch in self._bus.follow(Topic.SESSIONS, self.partition, self._next):
            for record in batch:
                await self._fold(record, replay=False)
            self._read_on.set()

    async def _watch(self) -> None:
        await self._broken

    async def _fail_open_calls(self, live: Live, reason: CallFailure, detail: str) -> None:
        events = [
            CallFailed(
                session_id=call.opened.session_id,
                attempt=call.opened.attempt,
                call_id=call.call_id,
                request_id=call.opened.request_id,
                reason=reason,
                detail=detail,
                status=503,
                failed_at=time.time(),
            )
            for call in live.session.open_calls()
        ]
        if events:
            await self.commit(live, events)


def _cancel_flights(live: Live) -> list[asyncio.Task[None]]:
    """Have all calls of a session aborted, which no other request joins any more; return their tasks."""
    flights = set(live.flights.values())
    for flight in flights:
        flight.stop()
    return [flight.task for flight in flights if flight.task is not None]
