"""A call in flight, as those see it who wait for it: its steps, which each listener hears once, at its own pace, and the ways to end it."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from typing import Any

from msgspec import Struct

from evener.dialects.canonical import NOTHING_STREAMED, RequestError, Streamed
from evener.proto.relay import Admitted, Waiting
from evener.proto.sessions import CallClosed, CallOpened


class StreamedPart(Struct, frozen=True, kw_only=True):
    """A part of the first choice that leaves before the commit (`live`)."""

    key: str
    before: Streamed
    """What was sent before this part."""
    reasoning: str
    text: str


class Answered(Struct, frozen=True, kw_only=True):
    """The call is committed with its answer."""

    opened: CallOpened
    closed: CallClosed
    streamed: Streamed = NOTHING_STREAMED


class Rejected(Struct, frozen=True):
    """The call has no answer, and its harness gets an error."""

    error: RequestError


class SendAgain(Struct, frozen=True):
    """The call has no answer, and only the relay is told: it sends the request again, and the harness does not notice."""

    detail: str = ""
    """The fault of this gateway. None: it knows of none."""


CallOutcome = Answered | Rejected | SendAgain
"""The last step."""
CallStep = Admitted | Waiting | CallOutcome
"""What happens to a call. Each listener renders it for its own request."""


class InflightCall:
    """One call, for one request or several. Steps are kept for listeners however late they come; streamed text once, not part by part."""

    def __init__(self, request_id: str, body_digest: str, grace_seconds: float) -> None:
        """`grace_seconds`: how long the call continues without a listener."""
        self.body_digest = body_digest
        self.requests = {request_id}
        """The requests that wait for the call."""
        self.disconnected: set[str] = set()
        """The requests whose harness disconnected."""
        self.streamed = NOTHING_STREAMED
        """The part of the first choice that was sent (`live`)."""
        self.has_engine = False
        """Whether it has an engine, or had one."""
        self.recording = False
        """Whether its end is being recorded, which nothing stops."""
        self.broken_off = False
        """Whether this gateway gives it up: listeners get no outcome, so that their relays ask the next owner."""
        self.listeners = 0
        """How many wait for it now."""
        self._stopped = False
        """Whether its attempt is over."""
        self._task: asyncio.Task[None] | None = None
        self._grace_seconds = grace_seconds
        self._alone: asyncio.TimerHandle | None = None
        """The timer that ends the call because it has no listener."""
        self._has_outcome = False
        self._key = ""
        """The key of the choice that is streamed."""
        self._steps: list[CallStep] = []
        self._changed = asyncio.Event()

    @property
    def ended(self) -> bool:
        """Whether no other request may join it."""
        return self._has_outcome or self._stopped

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Answer the call in a task, which the call's end cancels."""
        self._task = asyncio.create_task(work)
        self._watch()
        return self._task

    def cancel(self) -> None:
        """Stop the sampling. The tokens sampled so far are recorded as aborted."""
        if self._task is not None and not self.recording:
            self._task.cancel()

    def stop(self) -> None:
        """Cancel the call because its attempt is over. No other request joins it."""
        self._stopped = True
        self.cancel()

    def break_off(self) -> None:
        """End the call, and the streams of all listeners without an outcome. No more is recorded than the number of its tokens."""
        self.broken_off = True
        self._changed.set()
        self.cancel()

    def give_way(self) -> None:
        """Break the call off if none of its tokens was sampled: another gateway may serve it sooner."""
        if not self.has_engine and not self.recording:
            self.break_off()

    async def until_recorded(self) -> None:
        """Wait until the call is recorded."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def put(self, step: CallStep) -> None:
        """Give a step to all listeners. Nothing follows the last one."""
        if not self._has_outcome:
            self._steps.append(step)
            self._has_outcome = isinstance(step, Answered | Rejected | SendAgain)
            self._changed.set()
            if self._has_outcome:
                self._rest()

    def stream(self, key: str, reached: Streamed) -> None:
        """Release the requests that are new in `reached`."""
        if len(self.streamed.reasoning) < len(reached.reasoning) or len(self.streamed.text) < len(reached.text):
            self._key, self.streamed = key, reached
            self._changed.set()

    async def listen(self) -> AsyncGenerator[CallStep | StreamedPart, None]:
        """Yield all steps from the first. The last is the outcome, unless the call was broken off.

        A listener that is late or slow gets the streamed text in larger parts. It does not get waits from before it came.
        """
        self.listeners += 1
        self._rest()
        seen, heard, late = 0, NOTHING_STREAMED, len(self._steps)
        try:
            while not self.broken_off:
                step = self._steps[seen] if seen < len(self._steps) else None
                if isinstance(step, Admitted | Waiting):
                    seen += 1
                    if isinstance(step, Admitted) or seen > late:
                        yield step
                elif (part := self._part(heard)) is not None:
                    heard = self.streamed
                    yield part
                elif step is not None:
                    yield step
                    return
                else:
                    self._changed.clear()
                    await self._changed.wait()
        finally:
            self.listeners -= 1
            if not self.listeners and not self._has_outcome:
                self._watch()

    def _watch(self) -> None:
        """Start the timer: the last listener has left."""
        self._alone = asyncio.get_running_loop().call_later(self._grace_seconds, self.cancel)

    def _rest(self) -> None:
        """Stop the timer: somebody listens, or the call is over."""
        if self._alone is not None:
            self._alone.cancel()
            self._alone = None

    def _part(self, heard: Streamed) -> StreamedPart | None:
        """Return what has left since a listener had `heard`."""
        reasoning, text = self.streamed.reasoning[len(heard.reasoning) :], self.streamed.text[len(heard.text) :]
        return StreamedPart(key=self._key, before=heard, reasoning=reasoning, text=text) if reasoning or text else None
