"""A session while it lives in the gateway: its folded log, the index over its histories, its calls in flight."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from typing import Final

from msgspec import Struct

from evener.dialects.canonical import NOTHING, RequestError, Streamed
from evener.proto.arrays import inline
from evener.proto.codec import AnyEvent
from evener.proto.relay import Admitted, Waiting
from evener.proto.sessions import CallClosed, CallFailed, CallOpened, CallUndelivered
from evener.proto.spec import Quirks
from evener.provider_gateway.spending import Spending
from evener.provider_gateway.threads import PLACING
from evener.tokens.history import History
from evener.tokens.session import Session

CALL_EVENTS: Final = (CallOpened, CallClosed, CallFailed, CallUndelivered)
SHORT_MESSAGES_BYTES: Final = 256 << 10
"""So much of a call's messages takes two or three milliseconds to index: its commit waits for no thread."""


class Piece(Struct, frozen=True, kw_only=True):
    """A part of the first choice that leaves before the commit (`live`): between two lengths of what has left, in characters."""

    key: str
    reasoning: tuple[int, int]
    text: tuple[int, int]


class Done(Struct, frozen=True, kw_only=True):
    """The call is committed with its answer."""

    opened: CallOpened
    closed: CallClosed
    streamed: Streamed = NOTHING


class Refused(Struct, frozen=True):
    """The call has no answer, and its harness is told why."""

    error: RequestError


class Lost(Struct, frozen=True):
    """The call has no answer, and the relay alone is told: it sends the request again, and the harness does not notice."""

    detail: str = ""
    """What is wrong with this gateway, where it knows."""


LOST: Final = Lost()
Happening = Admitted | Waiting | Done | Refused | Lost
Step = Happening | Piece
"""What happens to a call, for whoever listens; each listener renders it for its own request. Done, Refused or Lost is the last."""


class Flight:
    """A call in flight: its task, the requests that wait for it, and its steps, for listeners however late they come."""

    def __init__(self, request_id: str, body_digest: str) -> None:
        self.task: asyncio.Task[None] | None = None
        self.body_digest = body_digest
        self.requests = {request_id}
        self.left: set[str] = set()
        """Those of them whose harness left."""
        self.streamed = NOTHING
        """What has left of the first choice (`live`)."""
        self.told = False
        """Its last step was put."""
        self.stopped = False
        """Its attempt is over."""
        self.broken = False
        """This gateway lets the call go: listeners get no end, so that the relay asks the next owner."""
        self._key = ""
        """Of the choice that is streamed."""
        self._steps: list[Happening] = []
        self._changed = asyncio.Event()
        self._listeners = 0
        self._alone_since: float | None = None

    def put(self, step: Happening) -> None:
        """Give a step to all listeners."""
        self._steps.append(step)
        self.told = self.told or isinstance(step, Done | Refused | Lost)
        self._changed.set()

    def stream(self, key: str, reached: Streamed) -> None:
        """Let what is new in `reached` leave."""
        if len(self.streamed.reasoning) < len(reached.reasoning) or len(self.streamed.text) < len(reached.text):
            self._key, self.streamed = key, reached
            self._changed.set()

    def said(self, piece: Piece) -> tuple[Streamed, Streamed]:
        """Return what left before a piece, and the piece."""
        reasoning, text = self.streamed.reasoning, self.streamed.text
        before = Streamed(reasoning=reasoning[: piece.reasoning[0]], text=text[: piece.text[0]])
        return before, Streamed(reasoning=reasoning[slice(*piece.reasoning)], text=text[slice(*piece.text)])

    @property
    def ended(self) -> bool:
        """Whether no other request may join it."""
        return self.told or self.stopped

    @property
    def listened(self) -> bool:
        """Whether anybody waits for it."""
        return self._listeners > 0

    def alone_for(self, now: float) -> float:
        """Return how long nobody has listened, in seconds of the loop's clock."""
        return 0.0 if self._listeners or self._alone_since is None else now - self._alone_since

    def stop(self) -> None:
        """Abort the sampling; what was sampled is recorded as aborted."""
        self.stopped = True
        if self.task is not None:
            self.task.cancel()

    def break_off(self) -> None:
        """End the streams of all listeners without an end, and the sampling without a record."""
        self.broken = True
        self._changed.set()
        if self.task is not None:
            self.task.cancel()

    async def steps(self) -> AsyncGenerator[Step, None]:
        """Yield all steps from the first; the last is Done, Refused or Lost, unless the call was broken off.

        What is streamed is kept once: a listener that comes late, or is slow, has it in larger pieces. Waits before it came are
        not its own.
        """
        self._listeners += 1
        seen, heard, late = 0, NOTHING, len(self._steps)
        try:
            while not self.broken:
                step = self._steps[seen] if seen < len(self._steps) else None
                if isinstance(step, Admitted | Waiting):
                    seen += 1
                    if isinstance(step, Admitted) or seen > late:
                        yield step
                elif (piece := self._piece(heard)) is not None:
                    heard = self.streamed
                    yield piece
                elif step is not None:
                    yield step
                    return
                else:
                    self._changed.clear()
                    await self._changed.wait()
        finally:
            self._listeners -= 1
            self._alone_since = asyncio.get_running_loop().time()

    def _piece(self, heard: Streamed) -> Piece | None:
        """Return what has left since a listener had `heard`."""
        now = self.streamed
        reasoning, text = (len(heard.reasoning), len(now.reasoning)), (len(heard.text), len(now.text))
        return Piece(key=self._key, reasoning=reasoning, text=text) if reasoning[0] < reasoning[1] or text[0] < text[1] else None


class Live:
    """One unsealed session."""

    def __init__(self, session_id: str) -> None:
        self.session = Session(session_id)
        self.flights: dict[str, Flight] = {}
        """By request id; one that several requests wait for stands under each."""
        self.lost_tries: Counter[str] = Counter()
        """By request id: tries that an engine failed."""
        self.unwritten_since: dict[str, float] = {}
        """By request id: when the log did not take an answer to it for the first time, by the loop's clock."""
        self.owed: list[CallOpened | CallFailed] = []
        """Tries that failed while the log took nothing: their openings and failures, to be committed before anything else."""
        self.placed = 0
        """Calls placed since the take-over, for seeds that differ."""
        self.warned = False
        """The operator was told that its sampling parameters mask its tokens."""
        self.spending = Spending(self.session)
        self.ending = asyncio.Lock()
        """Held while its end is written."""
        self.changing = asyncio.Lock()
        """Held while calls are folded in, and while a thread looks at them."""
        self._history: History | None = None

    @property
    def quirks(self) -> Quirks:
        """What is special about the harness of the current attempt."""
        return self._quirks(self.session.attempt)

    @property
    def history(self) -> History:
        """The index over the histories of the current attempt's calls; built when first needed. Only for who holds `changing`."""
        attempt, history = self.session.attempt, self._history
        if history is None or history.attempt != attempt:
            history = self._history = History(self.session.forest, self._quirks(attempt), attempt)
            for call in self.session.forest.calls.values():
                call.forget_messages()
        return history

    def number(self) -> int:
        """Return the number of a call that is placed now: another one for each call at once, so that their seeds differ."""
        self.placed += 1
        return len(self.session.forest.calls) + self.placed

    async def fold(self, events: Sequence[tuple[AnyEvent, int]], now: float) -> None:
        """Fold committed events in, each with its offset, and its calls into the index. Only for who holds `changing`."""
        for event, offset in events:
            self.session.apply(event, offset=offset, record_at=now)
        called = [event.call_id for event, _ in events if isinstance(event, CALL_EVENTS)]
        if any(isinstance(event, CallOpened) and len(inline(event.messages)) > SHORT_MESSAGES_BYTES for event, _ in events):
            await PLACING.run(self._index, called)
        else:
            self._index(called)

    def _index(self, call_ids: Sequence[str]) -> None:
        """Take committed calls into the index. Their texts are in the log; here only what recognises them is kept."""
        if self._history is None:  # it will be built of all of them
            return
        for call in filter(None, map(self.session.forest.calls.get, call_ids)):
            self.history.add(call)
            call.forget_messages()

    def _quirks(self, attempt: int) -> Quirks:
        start = self.session.starts.get(attempt)
        return start.quirks if start else Quirks()

    def land(self, flight: Flight) -> None:
        """Take an ended flight out. One that was cancelled before it began, or without a word, is told to the relay alone."""
        for request_id in flight.requests:
            self.flights.pop(request_id, None)
        if not flight.told and not flight.broken:
            flight.put(LOST)

    def owe(self, opened: CallOpened, failed: CallFailed) -> None:
        """Keep a failure that the log did not take, for the books, if tokens were sampled in vain."""
        if failed.sampled_tokens:
            self.owed += [failed] if opened.call_id in self.session.forest.calls else [opened, failed]
