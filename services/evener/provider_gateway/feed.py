"""The steps of a call, for its listeners: each hears all of them once, at its own pace."""

import asyncio
from collections.abc import AsyncGenerator, Callable

from msgspec import Struct

from evener.dialects.canonical import NOTHING, RequestError, Streamed
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
    streamed: Streamed = NOTHING


class Rejected(Struct, frozen=True):
    """The call has no answer, and its harness gets an error."""

    error: RequestError


class SendAgain(Struct, frozen=True):
    """The call has no answer, and only the relay is told: it sends the request again, and the harness does not notice."""

    detail: str = ""
    """What is wrong with this gateway, if it knows."""


Outcome = Answered | Rejected | SendAgain
"""The last step."""
Step = Admitted | Waiting | Outcome
"""What happens to a call. Each listener renders it for its own request."""


class CallFeed:
    """The steps of one call, kept for listeners however late they come. Streamed text is kept once, not part by part."""

    def __init__(self, grace_seconds: float, abandoned: Callable[[], None]) -> None:
        """`abandoned` is called when nobody has listened for `grace_seconds`."""
        self.streamed = NOTHING
        """What has left of the first choice (`live`)."""
        self.ended = False
        """Whether the last step was put."""
        self._grace_seconds = grace_seconds
        self._abandoned: Callable[[], None] | None = abandoned
        self._alone: asyncio.TimerHandle | None = asyncio.get_running_loop().call_later(grace_seconds, abandoned)
        self._broken_off = False
        self._key = ""
        """The key of the choice that is streamed."""
        self._steps: list[Step] = []
        self._changed = asyncio.Event()
        self._listeners = 0

    @property
    def listened(self) -> bool:
        """Whether any listener waits."""
        return self._listeners > 0

    def put(self, step: Step) -> None:
        """Give a step to all listeners. Nothing follows the last one."""
        if not self.ended:
            self._steps.append(step)
            self.ended = isinstance(step, Answered | Rejected | SendAgain)
            self._changed.set()
            if self.ended:
                self._rest()
                self._abandoned = None  # or feed and call would keep each other in memory

    def stream(self, key: str, reached: Streamed) -> None:
        """Release what is new in `reached`."""
        if len(self.streamed.reasoning) < len(reached.reasoning) or len(self.streamed.text) < len(reached.text):
            self._key, self.streamed = key, reached
            self._changed.set()

    def break_off(self) -> None:
        """End the streams of all listeners without an outcome, so that their relays ask the next owner."""
        self._broken_off = True
        self._changed.set()

    async def listen(self) -> AsyncGenerator[Step | StreamedPart, None]:
        """Yield all steps from the first. The last is the outcome, unless the call was broken off.

        A listener that is late or slow gets the streamed text in larger parts. It does not get waits from before it came.
        """
        self._listeners += 1
        self._rest()
        seen, heard, late = 0, NOTHING, len(self._steps)
        try:
            while not self._broken_off:
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
            self._listeners -= 1
            if not self._listeners and self._abandoned is not None:
                self._alone = asyncio.get_running_loop().call_later(self._grace_seconds, self._abandoned)

    def _rest(self) -> None:
        """Stop the timer: somebody listens, or the call is over."""
        if self._alone is not None:
            self._alone.cancel()
            self._alone = None

    def _part(self, heard: Streamed) -> StreamedPart | None:
        """Return what has left since a listener had `heard`."""
        reasoning, text = self.streamed.reasoning[len(heard.reasoning) :], self.streamed.text[len(heard.text) :]
        return StreamedPart(key=self._key, before=heard, reasoning=reasoning, text=text) if reasoning or text else None
