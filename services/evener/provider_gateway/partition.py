"""A partition of `sessions` that this gateway owns: takes it over, follows its tail, ends its sessions. Its writer commits the calls.

Whoever takes the partition over initialises the same transactional id, which fences this gateway for good: its commits fail, so nobody
receives anything from it any more.
"""

import asyncio
import time
from collections.abc import Collection
from contextlib import suppress
from typing import Final

import structlog
from msgspec import Struct, field
from opentelemetry import trace

from evener.bus.port import Bus, Fenced, GroupOffset, Position, Reader, Record
from evener.proto.codec import AnyEvent, BadRecord, tag_of
from evener.proto.errors import Recoverable
from evener.proto.reasons import END_POLICY, CallFailure, TerminationReason
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
from evener.provider_gateway import records
from evener.provider_gateway.core import enforced
from evener.provider_gateway.session import SessionRuntime
from evener.provider_gateway.writer import PartitionWriter
from evener.runtime.backoff import Backoff
from evener.runtime.change import Change
from evener.runtime.faults import point, point_in_thread
from evener.runtime.turns import Turns
from evener.service.events import EventLog, header
from evener.service.tracing import context_of
from evener.tokens.attempt_end import attempt_end
from evener.tokens.inconsistencies import fingerprints
from evener.tokens.mark import LowWater
from evener.tokens.rows import ROW_RULE, cut, digest
from evener.tokens.session import SessionLog

GROUP: Final = "provider-gateway"
"""The consumer group that divides the partitions, and whose offset in each is the low-water mark."""
READER: Final = Reader("provider_gateway", groups=(GROUP,))
OWN_EVENTS: Final = (CallOpened, CallClosed, CallFailed, CallUndelivered, CallDelivered, AttemptEnded, SessionSealed)
OWN_TAGS: Final = frozenset(tag_of(event).encode() for event in OWN_EVENTS)
"""Events that the owner alone writes and folds when they are committed. The tail skips them."""

END_PAUSES: Final = Backoff(0.2, 5.0)
"""The pauses between tries to write a session's end."""
LETTING_GO_SECONDS: Final = 5.0
"""How long calls that are broken off may take to record what they had sampled: a blob store may be away."""

log = structlog.get_logger()
tracer = trace.get_tracer("evener.provider_gateway")


class Partition(Struct, eq=False):
    """One partition of `sessions` that this gateway owns: its sessions, the tail, the ends. Its `writer` commits the calls."""

    bus: Bus
    events: EventLog
    number: int
    writer: PartitionWriter
    epoch: int = 0
    """The number of this gateway's hold on it: of all gateways that list it, the one with the highest is believed."""
    releasing: bool = False
    """Whether it is being handed over: calls in flight are finished, and no others begun."""
    sessions: dict[str, SessionRuntime] = field(default_factory=dict)
    _water: LowWater = field(default_factory=LowWater)
    _next: int = 0
    """The offset after the last record that was read."""
    landed: Change = field(default_factory=Change)
    """Notes the end of every call."""
    _read_on: asyncio.Event = field(default_factory=asyncio.Event)
    _ends: Turns = field(default_factory=Turns)
    """A task that is cancelled ends a thousand sessions together."""
    _tasks: asyncio.TaskGroup | None = None

    async def take_over(self) -> None:
        """Read what the earlier owner left, fail its open calls, and end the sessions that have exited."""
        start = await self.bus.committed(GROUP, Topic.SESSIONS, self.number)
        self._next = start if start is not None else await self.bus.beginning(Topic.SESSIONS, self.number)
        async for record in self.bus.read(Topic.SESSIONS, self.number, self._next):
            await self._fold(record, replay=True)
        for session in list(self.sessions.values()):
            await self._fail_open_calls(session, CallFailure.OWNER_LOST, "the gateway was lost while the call was open")
            await point("gateway.recovering")
            if _is_due(session):
                await self._write_end(session)
        log.info("partition_taken_over", partition=self.number, sessions=len(self.sessions), next_offset=self._next)
        await point("gateway.taken_over")

    async def serve(self) -> None:
        """Follow the tail and write ends until cancelled. Raises Fenced when another instance has taken the partition over."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                tasks.create_task(self._follow())
                tasks.create_task(self.writer.lost())
        except* Fenced as lost:
            msg = f"partition {self.number} of sessions was taken over"
            raise Fenced(msg) from lost

    def is_sealed(self, session_id: str) -> bool:
        """Return whether this session is known to have ended."""
        return self._water.is_sealed(session_id)

    @property
    def open_calls(self) -> int:
        """The number of calls in flight."""
        return sum(len(set(session.calls.values())) for session in self.sessions.values())

    async def until_idle(self) -> None:
        """Wait until no call is in flight."""
        await self.landed.until(lambda: not any(session.calls for session in self.sessions.values()))

    def give_way(self) -> None:
        """Break off the calls that have no engine yet: nothing was sampled, and the next owner may have one sooner."""
        for session in self.sessions.values():
            for call in set(session.calls.values()):
                call.give_way()

    async def prove(self) -> None:
        """Return if this gateway holds the partition. Raises Fenced, NotCommitted."""
        mark = self._water.mark(self._next, time.time())
        await self.writer.prove([GroupOffset(GROUP, Position(Topic.SESSIONS, self.number, mark))])

    async def passed(self, offset: int, seconds: float) -> bool:
        """Wait until the tail has passed `offset`. Returns False after `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._next <= offset:
                    self._read_on.clear()
                    await self._read_on.wait()
        return self._next > offset

    async def deliver(self, session: SessionRuntime, opened: CallOpened, request_id: str, *, disconnected: Collection[str] = ()) -> bool:
        """Record that a transport retry gets a call's answer, before it does. False: it disconnected, or the session ended meanwhile."""
        if request_id == opened.request_id or request_id in session.log.forest.calls[opened.call_id].requests:
            return True
        if request_id in disconnected or session.is_over:
            return False
        await self.writer.commit(session, [records.delivered(opened, request_id)])
        return True

    async def note_undelivered(self, session: SessionRuntime, request_ids: Collection[str]) -> None:
        """Record the answered calls whose answer these requests did not receive."""
        if not request_ids or session.is_over:
            return
        unreceived = [
            records.undelivered(call.opened, request_id)
            for request_id in sorted(request_ids)
            for call in session.log.forest.of_request(request_id)
            if call.answered and request_id not in call.left
        ]
        if unreceived:
            await self.writer.commit(session, unreceived)

    async def aclose(self) -> None:
        """Break off the calls in flight, which the next owner samples again; what they had sampled is recorded.

        Calls that are being recorded are committed.
        """
        calls = {call for session in self.sessions.values() for call in session.calls.values()}
        for call in calls:
            call.break_off()
        with suppress(TimeoutError):
            async with asyncio.timeout(LETTING_GO_SECONDS):
                await asyncio.gather(*(call.until_recorded() for call in calls))
        await self.writer.aclose()
        await asyncio.gather(*(call.until_recorded() for call in calls))

    async def _follow(self) -> None:
        async for batch in self.bus.follow(Topic.SESSIONS, self.number, self._next, READER):
            for record in batch:
                await self._fold(record, replay=False)
            self._read_on.set()

    async def _fold(self, record: Record, *, replay: bool) -> None:
        self._next = record.offset + 1
        session_id = (header(record, HEADER_SESSION) or b"").decode(errors="replace") or record.key
        if self._water.is_sealed(session_id):
            return
        if not replay and header(record, HEADER_TYPE) in OWN_TAGS:
            return  # neither decoded nor fetched: the tail must not wait for what this owner has folded in already
        try:
            event = await self.events.event(record)
        except BadRecord as bad:
            await self.events.dead_letter("provider_gateway", record, str(bad))
            return
        session = self.sessions.get(session_id) or SessionRuntime(session_id)
        if session.sealing:
            session.set_aside.append((record, event))
        else:
            self._take_in(session, record, event, replay=replay)

    def _take_in(self, session: SessionRuntime, record: Record, event: AnyEvent, *, replay: bool) -> None:
        session_id = session.session_id
        counted = session.log.apply(event, offset=record.offset, record_at=record.timestamp_ms / 1000)
        if session.log.sealed is not None:
            self._forget(session_id, record.offset, session.log.sealed.sealed_at)
        elif counted:
            if not isinstance(event, OWN_EVENTS):
                session.trace = context_of(record)
            self.sessions[session_id] = session
            self._water.opened(session_id, record.offset)
            if not replay:
                self._heed(session, event)

    def _heed(self, session: SessionRuntime, event: AnyEvent) -> None:
        match event:
            case SessionStarted():
                session.stop_calls()  # they end by themselves: the tail does not wait for their commits
            case HarnessExited() | SessionGivenUp():
                if self._tasks is not None and not session.ending:
                    session.ending = True
                    self._tasks.create_task(self._end(session))
            case _:
                pass

    async def _end(self, session: SessionRuntime) -> None:
        """Write the end, however long the log is unavailable: no other process may. Records read meanwhile may require another end."""
        pauses = iter(END_PAUSES)
        while _is_due(session):
            await self._ends.wait()
            try:
                await self._write_end(session)
            except Recoverable as error:
                log.warning("end_not_committed", session_id=session.session_id, error=str(error))
                await asyncio.sleep(next(pauses))
        session.ending = False

    async def _write_end(self, session: SessionRuntime) -> None:
        """Stop the open calls, let the log take all records, then write AttemptEnded or the seal."""
        await asyncio.gather(*(call.until_recorded() for call in session.stop_calls()))
        await session.settled()
        await self.writer.commit(session, [])
        await self._fail_open_calls(session, CallFailure.CANCELLED, "the session ended")
        found = attempt_end(session.log, enforced(session.log))
        if found is None:
            return
        reason, detail = found
        run_again = END_POLICY[reason].run_again and session.log.given_up is None
        with tracer.start_as_current_span("end_attempt" if run_again else "seal", context=session.trace) as span:
            span.set_attribute("evener.session.id", session.session_id)
            span.set_attribute("evener.termination_reason", reason)
            if run_again:
                await self._end_attempt(session, reason, detail)
            else:
                await self._seal(session, reason, detail)

    async def _end_attempt(self, session: SessionRuntime, reason: TerminationReason, detail: str) -> None:
        attempt = session.log.attempt
        ended = AttemptEnded(session_id=session.session_id, attempt=attempt, termination_reason=reason, detail=detail, ended_at=time.time())
        await self.writer.commit(session, [ended])
        log.info("attempt_ended", session_id=session.session_id, attempt=attempt, termination_reason=reason)

    async def _seal(self, session: SessionRuntime, reason: TerminationReason, detail: str) -> None:
        """Write the seal of the attempt whose end was just determined. What others write meanwhile is void, unless the seal fails."""
        session.sealing = True
        try:
            await session.settled()
            prints, rows_digest = await session.look_to_end(_cut, session.log, reason)
            now, before = time.time(), self._next
            seal = SessionSealed(
                session_id=session.session_id,
                attempt=session.log.attempt,
                termination_reason=reason,
                detail=detail,
                rows_digest=rows_digest,
                rule=ROW_RULE,
                calls=sum(call.closed is not None for call in session.log.forest.calls.values()),
                sampled_tokens=session.log.sampled_tokens(),
                sealed_at=now,
                fingerprints=prints,
                spec=session.log.spec,
            )
            mark = self._water.mark(before, now, without=session.session_id)
            await self.writer.commit(session, [seal], offsets=[GroupOffset(GROUP, Position(Topic.SESSIONS, self.number, mark))])
        finally:
            session.sealing = False
            for record, event in session.take_set_aside():
                self._take_in(session, record, event, replay=False)
        await point("gateway.sealed")
        self._forget(session.session_id, before, now)
        log.info("session_sealed", session_id=session.session_id, termination_reason=reason, calls=seal.calls, sampled=seal.sampled_tokens)

    def _forget(self, session_id: str, offset: int, at: float) -> None:
        self.sessions.pop(session_id, None)
        self._water.sealed(session_id, offset, at)

    async def _fail_open_calls(self, session: SessionRuntime, reason: CallFailure, detail: str) -> None:
        failed = [records.failed(call.opened, reason, detail, 503) for call in session.log.open_calls()]
        await self.writer.commit(session, failed)


def _is_due(session: SessionRuntime) -> bool:
    """Return whether an end is to be written, of the attempt or of the session."""
    state = session.log
    if state.sealed is not None or (state.attempt in state.ended and state.given_up is None):
        return False
    return attempt_end(state, None) is not None


def _cut(session: SessionLog, reason: TerminationReason) -> tuple[bytes, str]:
    """Return the fingerprints for the seal, and the digest of the rows.

    A session that cannot be cut is sealed without rows, so that others are not held up.
    """
    point_in_thread("gateway.cutting")
    try:
        made = cut(session, reason)
        return b"".join(fingerprints(session.forest, session.attempt, reason).values()), digest(made.rows)
    except Exception:  # the one place where a session's damage is caught
        log.exception("rows_not_cut", session_id=session.session_id)
        return b"", digest(())
