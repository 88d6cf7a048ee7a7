"""One request of the harness, from its arrival to the end of its answer. The relay reads nothing of its messages."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from http import HTTPStatus
from typing import Final, TypeVar

import msgspec
from aiohttp import web
from msgspec import Struct, field

from evener.dialects.canonical import Dialect, Head, RequestError, RequestHints
from evener.proto.ids import answer_identity
from evener.proto.reasons import CallFailure
from evener.proto.relay import Admitted, Answer, Delta, Waiting
from evener.runtime.byte_budget import ByteBudget
from evener.runtime.time_limits import stopped
from evener.sandbox_runner.clock import AgentClock
from evener.sandbox_runner.gateway_client import GatewayClient, RelayedCall, TryLost, error_message

RETRY_AFTER_SECONDS: Final = 5
JSON: Final = "application/json"

T = TypeVar("T")


class Limits(Struct, frozen=True, kw_only=True):
    """The relay's limits of time and size; see the configuration."""

    admission_seconds: float
    call_seconds: float
    keep_alive_seconds: float
    body_bytes: int
    bodies: ByteBudget = field(default_factory=lambda: ByteBudget(sys.maxsize))
    """The bytes of bodies that all relays of the process may hold together. Each has a share."""
    body_seconds: float = 60.0
    """A body must have come within this time, without the waits for room."""
    in_vain_seconds: float = 1.0
    """A harness that ends for reasons of its own leaves calls that it sent a moment ago: after this time it may have waited in vain."""
    told_seconds: float = 2.0
    """A call waits for Evener as long as its gateway says so this often: several times as often as it does."""


class HarnessDisconnected(Exception):
    """The harness closed its connection."""


class Exchange:
    """Answers one request with what gateways say, in the harness's dialect."""

    def __init__(
        self,
        request: web.BaseRequest,
        call: RelayedCall,
        dialect: Dialect,
        client: GatewayClient,
        *,
        hints: RequestHints,
        clock: AgentClock,
        limits: Limits,
    ) -> None:
        self.sent_again = 0
        self.failure: CallFailure | None = None
        """Why the harness gets no answer."""
        self.detail = ""
        self.unlogged = False
        """Whether the reason is a limit of the relay, or a gateway that could not serve it now: the log may know nothing of the request."""
        self.gave_up = False
        """Whether a limit passed before an answer came, or half of an answer was lost, so that the call is to be aborted."""
        self.admitted = False
        """Whether a gateway has placed the call. From then on the log records how it ends."""
        self.came_at = time.monotonic()
        self._waited_at = float("-inf")
        """The monotonic time at which the gateway last said that the call waits."""
        self._request = request
        self._call = call
        self._dialect = dialect
        self._client = client
        self._clock = clock
        self._limits = limits
        self._hints = hints
        self._stream: web.StreamResponse | None = None
        """The streamed response. None: its headers have not left."""
        self._keep_alive_at: float | None = None
        """When the next harmless event is due on an open stream, by the loop's clock."""
        self._prompt_tokens = 0
        """The length of the prompt, known when the headers leave."""
        self._admission: asyncio.Timeout
        """The limit of the time until a gateway admits the call. It is over once the call is admitted."""
        self._began = False
        """Whether the harness has seen a part of the answer (`live`), which another sampling would contradict."""

    async def run(self) -> web.StreamResponse:
        """Answer the request. Raises HarnessDisconnected."""
        try:
            return await self._deliver(await self._within_limits())
        except ConnectionError as cause:
            raise HarnessDisconnected from cause
        finally:
            self._clock.end(self)

    async def patiently(self, waiting: Callable[[], Awaitable[T]], *, handover: bool = False) -> T:
        """Wait for a gateway. Each harmless event, which keeps the harness of an open stream waiting, restarts the wait.

        The time of a handover does not count for the admission.
        """
        if handover:
            with stopped(self._admission):
                return await self.patiently(waiting)
        while True:
            try:
                async with asyncio.timeout_at(self._keep_alive_at) as silence:
                    return await waiting()
            except TimeoutError:
                if not silence.expired():
                    raise
            await self._write(self._dialect.keep_alive(self._head()))

    def waited_in_vain(self) -> bool:
        """Return whether a harness that disconnects now waits for Evener, and has done so for so long that this may be its reason.

        It waits for an owner, a queue or an engine, or, once it is admitted, for an engine that is paused or for the log.
        """
        now = time.monotonic()
        waits = not self.admitted or now - self._waited_at < self._limits.told_seconds
        return waits and now - self.came_at > self._limits.in_vain_seconds

    async def _within_limits(self) -> Answer:
        admission = self._admission = asyncio.timeout(self._limits.admission_seconds)
        try:
            async with asyncio.timeout(self._limits.call_seconds), admission:
                return await self._listen()
        except TimeoutError:
            self.gave_up = True
            if admission.expired():
                return self._refused(HTTPStatus.SERVICE_UNAVAILABLE, "no gateway admits the call now; try again", "overloaded_error")
            return self._refused(HTTPStatus.GATEWAY_TIMEOUT, "the call took too long", "timeout_error")

    async def _listen(self) -> Answer:
        self._clock.begin(self)
        async with aclosing(self._client.frames(self._call, self.patiently)) as frames:
            async for frame in frames:
                match frame:
                    case Admitted():
                        self.admitted = True
                        self._clock.end(self)
                        self._admission.reschedule(None)
                        await self._open(frame.prompt_tokens)
                    case Waiting():
                        self._waited_at = time.monotonic()
                        self._clock.take_out(frame.seconds)
                    case TryLost() if self._began:
                        self.gave_up = True
                        return self._refused(HTTPStatus.BAD_GATEWAY, "the answer was lost half-way", "server_error")
                    case TryLost():
                        self.sent_again += 1
                        self.admitted = False
                        self._clock.begin(self)
                    case Delta() if self._stream is not None:
                        self._began = True
                        await self._write(frame.body)
                    case Answer():
                        self.unlogged = frame.status == HTTPStatus.SERVICE_UNAVAILABLE
                        return frame
                    case _:
                        pass
        msg = "frames end with an answer"
        raise RuntimeError(msg)

    async def _open(self, prompt_tokens: int) -> None:
        """Send the headers and prologue of a streamed answer, once."""
        if self._stream is not None or not self._hints.stream:
            return
        self._prompt_tokens = prompt_tokens
        self._stream = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"})
        await self._stream.prepare(self._request)
        self._call.started = True
        await self._write(self._dialect.prologue(self._head()))

    async def _write(self, data: bytes) -> None:
        if self._stream is None:
            return
        try:
            await self._stream.write(data)
        except ConnectionError as cause:
            raise HarnessDisconnected from cause
        self._keep_alive_at = asyncio.get_running_loop().time() + self._limits.keep_alive_seconds

    def _head(self) -> Head:
        answer_id, created = answer_identity(self._call.request_id)
        return Head(answer_id=answer_id, created=created, model=self._hints.model, prompt_tokens=self._prompt_tokens)

    async def _deliver(self, answer: Answer) -> web.StreamResponse:
        self.failure, self.detail = answer.failure, answer.detail
        is_error_body = answer.status >= HTTPStatus.BAD_REQUEST and answer.body[:1] in {b"{", b""}
        if (stream := self._stream) is not None:
            await stream.write(self._late_error(answer) if is_error_body else answer.body)
            await stream.write_eof()
            return stream
        if answer.status == HTTPStatus.GONE:  # the harness gets 400, the one status that ends every harness
            answer = self._told(HTTPStatus.BAD_REQUEST, error_message(answer.body), "session_ended")
        whole = web.StreamResponse(status=answer.status, headers={"content-type": JSON, **dict(answer.headers)})
        whole.content_length = len(answer.body)
        await whole.prepare(self._request)
        await whole.write_eof(answer.body)
        return whole

    def _late_error(self, answer: Answer) -> bytes:
        """Return an error after the headers, as the event that ends the stream."""
        message = error_message(answer.body) or f"status {answer.status}"
        return self._dialect.stream_error(self._head(), RequestError(message, status=answer.status, kind="server_error"))

    def _refused(self, status: HTTPStatus, message: str, kind: str) -> Answer:
        """Return the answer to the harness after a fault of Evener."""
        self.unlogged = True
        detail = f"{message} ({self._call.trouble})" if self._call.trouble else message
        return msgspec.structs.replace(self._told(status, message, kind), failure=CallFailure.OVERLOADED, detail=detail)

    def _told(self, status: HTTPStatus, message: str, kind: str) -> Answer:
        headers = (("retry-after", str(RETRY_AFTER_SECONDS)),) if status == HTTPStatus.SERVICE_UNAVAILABLE else ()
        error = RequestError(message, status=status, kind=kind)
        return Answer(status=status, headers=headers, body=self._dialect.error(error))
