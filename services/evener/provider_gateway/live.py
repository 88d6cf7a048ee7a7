"""A session while it lives in the gateway: its folded log, the index over its histories, its calls in flight."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

from evener.proto.relay import Admitted, Answer, AnyFrame
from evener.proto.spec import Quirks
from evener.tokens.history import History
from evener.tokens.session import Session


class Flight:
    """A call in flight: its task, and the frames that whoever listens gets, however late they come."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.broken = False
        """This gateway lets the call go: listeners get no Answer, so that the relay asks the next owner."""
        self._frames: list[AnyFrame] = []
        self._changed = asyncio.Event()
        self._listeners = 0
        self._alone_since: float | None = None

    def put(self, frame: AnyFrame) -> None:
        """Give a frame to all listeners."""
        self._frames.append(frame)
        self._changed.set()

    @property
    def admitted(self) -> bool:
        """Whether the headers of a streamed answer may be out."""
        return any(isinstance(frame, Admitted) for frame in self._frames)

    def alone_for(self, now: float) -> float:
        """Return how long nobody has listened, in seconds of the loop's clock."""
        return 0.0 if self._listeners or self._alone_since is None else now - self._alone_since

    def break_off(self) -> None:
        """End the streams of all listeners without an Answer, and the sampling without a record."""
        self.broken = True
        self._changed.set()
        if self.task is not None:
            self.task.cancel()

    async def frames(self) -> AsyncIterator[AnyFrame]:
        """Yield all frames from the first; the last is an Answer, unless the call was broken off."""
        self._listeners += 1
        sent = 0
        try:
            while not self.broken:
                while sent < len(self._frames):
                    frame = self._frames[sent]
                    sent += 1
                    yield frame
                    if isinstance(frame, Answer):
                        return
                self._changed.clear()
                await self._changed.wait()
        finally:
            self._listeners -= 1
            self._alone_since = asyncio.get_running_loop().time()


class Live:
    """One unsealed session."""

    def __init__(self, session_id: str) -> None:
        self.session = Session(session_id)
        self.flights: dict[str, Flight] = {}
        """By request id."""
        self.lost_tries: Counter[str] = Counter()
        """By request id: tries that an engine or the log failed."""
        self.placed = 0
        """Calls placed since the take-over, for seeds that differ."""
        self.warned = False
        """The operator was told that its sampling parameters mask its tokens."""
        self.ending = asyncio.Lock()
        """Held while its end is written."""
        self._history: History | None = None

    @property
    def history(self) -> History:
        """The index over the histories of its calls; built when first needed."""
        if self._history is None:
            start = self.session.starts.get(self.session.attempt)
            self._history = History(self.session.forest, start.quirks if start else Quirks(), self.session.attempt)
        return self._history

    def index(self, call_id: str) -> None:
        """Take a committed call into the index."""
        if self._history is not None and (call := self.session.forest.calls.get(call_id)) is not None:
            self._history.add(call)

    def new_attempt(self) -> None:
        """Another attempt may have other quirks: build the index anew."""
        self._history = None
