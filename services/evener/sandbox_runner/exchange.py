"""One request of the harness, from its arrival to the end of its answer. Nothing of its messages is read."""

import asyncio
import time
from contextlib import AsyncExitStack, aclosing, suppress
from http import HTTPStatus
from typing import Final

import msgspec
from aiohttp import web
from msgspec import Struct

from evener.dialects.canonical import Dialect, Head, RequestError, Wish
from evener.proto.ends import CallFailure
from evener.proto.ids import answer_identity
from evener.proto.relay import Admitted, Answer, Delta, Waiting
from evener.sandbox_runner.clock import CallWait
from evener.sandbox_runner.relay_client import Call, GatewayClient, Lost, error_message

RETRY_AFTER_SECONDS: Final = 5
IN_VAIN_SECONDS: Final = 1.0
"""Harnesses that end for reasons of their own leave calls that were sent a moment ago."""
JSON: Final = "application/json"


class Limits(Struct, frozen=True, kw_only=True):
    """Times and sizes of the relay; see the configuration."""

    admission_seconds: float
    call_seconds: float
    keep_alive_seconds: float
    body_bytes: int


class Exchange:
    """Answers one request: what gateways say, in the harness's dialect."""

    def __init__(
        self, request: web.Request, call: Call, dialect: Dialect, client: GatewayClient, *, wish: Wish, wait: CallWait, limits: Limits
    ) -> None:
        self.sent_again = 0
        self.failure: CallFailure | None = None
        """Why the harness gets no answer."""
        self.detail = ""
        self.unserved = False
        """The reason is a limit of the relay, or a gateway that could not serve it now: the log may know nothing of the request."""
        self.gave_up = False
        """A limit passed before an answer came, or half of one was lost: the call is to be aborted."""
        self.admitted = False
        """A gateway has placed it: from then on the log says what becomes of it."""
        self.came_at = time.monotonic()
        self._request = request
        self._call = call
        self._dialect = dialect
        self._client = client
        self._wait = wait
        self._limits = limits
        self._wish = wish
        self._stream: web.StreamResponse | None = None
        """Open: the headers are out."""
        self._prompt_tokens = 0
        """Known when the headers are out."""
        self._began = False
        """The harness has seen a part of the answer (`live`): another sampling would contradict it."""

    async def run(self) -> web.StreamResponse:
        """Answer the request. Raises ConnectionError when the harness is gone."""
        async with AsyncExitStack() as stack:
            answer = await self._within_limits(stack)
        return await self._deliver(answer)

    def waited_in_vain(self) -> bool:
        """Return whether a harness that leaves now has waited for a gateway so long that it may leave for that reason."""
        return not self.admitted and time.monotonic() - self.came_at > IN_VAIN_SECONDS

    async def _within_limits(self, stack: AsyncExitStack) -> Answer:
        admission = asyncio.timeout(self._limits.admission_seconds)
        try:
            async with asyncio.timeout(self._limits.call_seconds), admission:
                return await self._listen(admission, stack)
        except TimeoutError:
            self.gave_up = True
            if admission.expired():
                return self._refused(HTTPStatus.SERVICE_UNAVAILABLE, "no gateway admits the call now; try again", "overloaded_error")
            return self._refused(HTTPStatus.GATEWAY_TIMEOUT, "the call took too long", "timeout_error")

    async def _listen(self, admission: asyncio.Timeout, stack: AsyncExitStack) -> Answer:
        self._wait.begin()
        async with aclosing(self._client.frames(self._call)) as frames:
            async for frame in frames:
                match frame:
                    case Admitted():
                        self.admitted = True
                        self._wait.end()
                        admission.reschedule(None)
                        await self._open(frame.prompt_tokens, stack)
                    case Waiting():
                        self._wait.take_out(frame.seconds)
                    case Lost() if self._began:
                        self.gave_up = True
                        return self._refused(HTTPStatus.BAD_GATEWAY, "the answer was lost half-way", "server_error")
                    case Lost():
                        self.sent_again += 1
                        self.admitted = False
                        self._wait.begin()
                    case Delta() if self._stream is not None:
                        self._began = True
                        await self._stream.write(frame.body)
                    case Answer():
                        self.unserved = frame.status == HTTPStatus.SERVICE_UNAVAILABLE
                        return frame
                    case _:
                        pass
        msg = "frames end with an answer"
        raise RuntimeError(msg)

    async def _open(self, prompt_tokens: int, stack: AsyncExitStack) -> None:
        """Send headers and prologue of a streamed answer, once; keep the harness waiting until the stack closes."""
        if self._stream is not None or not self._wish.stream:
            return
        self._prompt_tokens = prompt_tokens
        head = self._head()
        headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
        self._stream = web.StreamResponse(headers=headers)
        await self._stream.prepare(self._request)
        self._call.started = True
        await self._stream.write(self._dialect.prologue(head))
        keeping = asyncio.create_task(self._keep_alive(self._stream, head))
        stack.push_async_callback(_stop, keeping)

    def _head(self) -> Head:
        answer_id, created = answer_identity(self._call.request_id)
        return Head(answer_id=answer_id, created=created, model=self._wish.model, prompt_tokens=self._prompt_tokens)

    async def _keep_alive(self, stream: web.StreamResponse, head: Head) -> None:
        event = self._dialect.keep_alive(head)
        with suppress(ConnectionError):  # the handler of a harness that is gone is cancelled
            while True:
                await asyncio.sleep(self._limits.keep_alive_seconds)
                await stream.write(event)

    async def _deliver(self, answer: Answer) -> web.StreamResponse:
        self.failure, self.detail = answer.failure, answer.detail
        is_error_body = answer.status >= HTTPStatus.BAD_REQUEST and answer.body[:1] in {b"{", b""}
        if (stream := self._stream) is not None:
            await stream.write(self._late(answer) if is_error_body else answer.body)
            await stream.write_eof()
            return stream
        if answer.status == HTTPStatus.GONE:  # the harness gets 400, the one status that ends every harness
            answer = self._told(HTTPStatus.BAD_REQUEST, error_message(answer.body), "session_ended")
        whole = web.StreamResponse(status=answer.status, headers={"content-type": JSON, **dict(answer.headers)})
        whole.content_length = len(answer.body)
        await whole.prepare(self._request)
        await whole.write_eof(answer.body)
        return whole

    def _late(self, answer: Answer) -> bytes:
        """Return an error that comes after the headers, as the event that ends the stream."""
        return self._dialect.stream_error(self._head(), RequestError(_message(answer), status=answer.status, kind="server_error"))

    def _refused(self, status: HTTPStatus, message: str, kind: str) -> Answer:
        """Return what the harness is told of a fault of ours."""
        self.unserved = True
        detail = f"{message} ({self._call.trouble})" if self._call.trouble else message
        return msgspec.structs.replace(self._told(status, message, kind), failure=CallFailure.OVERLOADED, detail=detail)

    def _told(self, status: HTTPStatus, message: str, kind: str) -> Answer:
        headers = (("retry-after", str(RETRY_AFTER_SECONDS)),) if status == HTTPStatus.SERVICE_UNAVAILABLE else ()
        error = RequestError(message, status=status, kind=kind)
        return Answer(status=status, headers=headers, body=self._dialect.error(error))


def _message(answer: Answer) -> str:
    return error_message(answer.body) or f"status {answer.status}"


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
