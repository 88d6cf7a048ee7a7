"""A session while it lives in the gateway: its folded log, the index over its histories, its calls in flight."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, ParamSpec, TypeVar

from opentelemetry.context import Context

from evener.bus.port import Record
from evener.proto.arrays import inline
from evener.proto.codec import AnyEvent
from evener.proto.sessions import CallClosed, CallFailed, CallOpened, CallUndelivered, SessionStarted
from evener.proto.spec import Quirks
from evener.provider_gateway.budget import SessionBudget
from evener.provider_gateway.inflight import InflightCall
from evener.provider_gateway.threads import ENDING, PLACING
from evener.runtime.threads import Threads
from evener.tokens.history import History
from evener.tokens.session import SessionLog

CALL_EVENTS: Final = (CallOpened, CallClosed, CallFailed, CallUndelivered)
SHORT_MESSAGES_BYTES: Final = 256 << 10
"""Messages of this size are indexed in two or three milliseconds. Larger ones are left to the thread that places the next call."""
SHORT_MESSAGES: Final = 500
"""So are more messages than these, however short."""

P = ParamSpec("P")
T = TypeVar("T")


class SessionRuntime:
    """One unsealed session."""

    def __init__(self, session_id: str) -> None:
        self.session_id: Final = session_id
        self.log: Final = SessionLog(session_id)
        """The session's state, folded from the log."""
        self.budget: Final = SessionBudget(self.log)
        self.calls: dict[str, InflightCall] = {}
        """The calls in flight by request id. A call for which several requests wait appears under each."""
        self.failed_tries: Counter[str] = Counter()
        """The number of tries that engines failed, by request id."""
        self.unwritten_since: dict[str, float] = {}
        """When the log first refused an answer, by request id and the loop's clock."""
        self.placings = 0
        """The number of placements since the take-over, so that seeds differ."""
        self.trace = Context()
        """The trace context of the last record that another service wrote."""
        self.warned = False
        """Whether the operator was warned that the sampling parameters mask the session's tokens."""
        self.ending = False
        """Whether the session's end is being written."""
        self.sealing = False
        """Whether the session's end is determined, and its rows are cut or its seal is committed."""
        self.set_aside: list[tuple[Record, AnyEvent]] = []
        """Records that other processes wrote meanwhile."""
        self.pending: Final[set[asyncio.Future[None]]] = set()
        """The events that the partition's writer has not committed yet."""
        self.owed: list[AnyEvent] = []
        """Records that the log refused and must hold before any later record."""
        self._history: History | None = None
        self._unindexed: list[str] = []
        """The committed calls that are not in the index yet, by id."""
        self._left_to_thread = False
        """Whether some of these calls are long."""
        self._looking: Final = asyncio.Lock()
        self._after_look: list[Callable[[], None]] = []

    @property
    def started(self) -> SessionStarted:
        """The start of the current attempt. Raises KeyError if none was read."""
        return self.log.starts[self.log.attempt]

    @property
    def quirks(self) -> Quirks:
        """The quirks of the current attempt's harness."""
        start = self.log.starts.get(self.log.attempt)
        return start.quirks if start else Quirks()

    @property
    def history(self) -> History:
        """The up-to-date index over the histories of the current attempt. Only for work that `look` runs."""
        history, calls = self._history, self.log.forest.calls
        if history is None or history.attempt != self.log.attempt:
            history = self._history = History(self.log.forest, self.quirks, self.log.attempt)
            self._unindexed = list(calls)
        self._index(history)
        return history

    @property
    def is_over(self) -> bool:
        """Whether the session's rows are cut or being cut, so that nothing may change them any more."""
        return self.sealing or self.log.sealed is not None

    def stop_calls(self) -> Collection[InflightCall]:
        """Abort all calls, which no request can join any more; return them."""
        calls = set(self.calls.values())
        for call in calls:
            call.stop()
        return calls

    async def look(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run work that reads the session in a thread, one at a time. Records committed meanwhile are folded in afterwards."""
        return await self._look(PLACING, work, *args, **kwargs)

    async def look_to_end(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do the same for the session's end, which does not wait for the prompts of other sessions."""
        return await self._look(ENDING, work, *args, **kwargs)

    def take_set_aside(self) -> Sequence[tuple[Record, AnyEvent]]:
        """Return the events that were set aside, and forget them."""
        aside, self.set_aside = self.set_aside, []
        return aside

    async def _look(self, threads: Threads, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        async with self._looking:
            try:
                return await threads.run(work, *args, **kwargs)
            finally:
                for change in self._after_look:
                    change()
                self._after_look.clear()

    def change(self, change: Callable[[], None]) -> None:
        """Apply a change as soon as no thread reads the session."""
        if self._looking.locked():
            self._after_look.append(change)
        else:
            change()

    def fold(self, events: Sequence[tuple[AnyEvent, int]], now: float) -> None:
        """Fold in committed events, each with its offset, and add their calls to the index."""
        for event, offset in events:
            self.log.apply(event, offset=offset, record_at=now)
        called = {event.call_id for event, _ in events if isinstance(event, CALL_EVENTS)}
        self._unindexed += called.intersection(self.log.forest.calls)
        self._left_to_thread = self._left_to_thread or any(_is_long(event) for event, _ in events)
        if self._history is not None and self._history.attempt == self.log.attempt and not self._left_to_thread:
            self._index(self._history)

    def _index(self, history: History) -> None:
        """Add committed calls to the index. Their texts are in the log; only what recognises them is kept."""
        for call in map(self.log.forest.calls.__getitem__, self._unindexed):
            history.add(call)
            call.forget_messages()
        self._unindexed.clear()
        self._left_to_thread = False

    def missing(self, events: Iterable[AnyEvent]) -> list[AnyEvent]:
        """Return those of a call's events that the log does not hold yet."""
        calls = self.log.forest.calls
        return [
            event
            for event in events
            if not (isinstance(event, CallOpened) and event.call_id in calls)
            and not (isinstance(event, CallClosed | CallFailed) and self.log.has_ended(event.call_id))
        ]

    async def settled(self) -> None:
        """Wait until everything handed to the writer is committed and folded, or has failed."""
        while self.pending:
            await asyncio.wait(self.pending)

    def next_number(self) -> int:
        """Return the number of a call that is placed now, different for each concurrent call, so that their seeds differ."""
        self.placings += 1
        return len(self.log.forest.calls) + self.placings


def _is_long(event: AnyEvent) -> bool:
    if not isinstance(event, CallOpened):
        return False
    known = 0 if event.history_base is None else event.history_base.count
    return len(inline(event.messages)) > SHORT_MESSAGES_BYTES or event.message_count - known > SHORT_MESSAGES
