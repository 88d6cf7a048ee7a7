"""Streams the answer of a call while it is sampled (`live`), as far as no later token can change how it parses."""

import asyncio
from typing import Final

from msgspec import Struct

from evener.dialects.canonical import Streamed
from evener.engines.answers import Sampled
from evener.proto.ids import answer_key
from evener.proto.sessions import CallOpened
from evener.provider_gateway.inflight import InflightCall
from evener.provider_gateway.timings import GatewayTimings
from evener.templates.port import Renderer

STREAMING_PAUSES: Final = 20
"""Parsing an answer for `live` takes at most one part in this many of the time."""


class AnswerStream(Struct, eq=False):
    """The first choice of one call on its way to its listeners."""

    sampled: Sampled
    renderer: Renderer
    call: InflightCall
    opened: CallOpened
    timings: GatewayTimings
    _open: bool = False
    _next: asyncio.TimerHandle | None = None
    _streamed_at: float = 0.0
    _reading_seconds: float = 0.0

    def begin(self) -> None:
        """Release all tokens sampled so far, and those that follow as they come."""
        self._open = True
        if len(self.sampled):
            self.grown()

    def grown(self) -> None:
        """Stream what there is now, or a little later if the last write was recent or parsing a long answer again costs too much."""
        if self._next is None and self._open:
            loop = asyncio.get_running_loop()
            wait = self._streamed_at + max(STREAMING_PAUSES * self._reading_seconds, self.timings.streaming) - loop.time()
            if wait <= 0:
                self._stream()
            else:
                self._next = loop.call_later(wait, self._stream)

    def stop(self) -> None:
        """Stop streaming: after the sampling only the whole answer leaves, and a failure that the harness has not seen stays hidden."""
        self._open = False
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _stream(self) -> None:
        loop = asyncio.get_running_loop()
        self._next, began = None, loop.time()
        reasoning, text = self.renderer.certain(self.sampled.ids)
        streamed = Streamed(reasoning="" if self.opened.reasoning_withheld else reasoning, text=text)
        self.call.stream(answer_key(self.opened.call_id, 0), streamed)
        self._streamed_at = loop.time()
        self._reading_seconds = self._streamed_at - began
