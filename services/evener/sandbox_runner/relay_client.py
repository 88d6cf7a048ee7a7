"""The relay's side of the conversation with gateways: one call, sent again under the same id until somebody answers it."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Coroutine, Mapping
from contextlib import aclosing, asynccontextmanager
from http import HTTPStatus
from typing import Any, Final

import aiohttp
import msgspec
import structlog
from msgspec import Struct
from yarl import URL

from evener.proto.codec import BadRecord, decode_frame
from evener.proto.relay import CAPABILITY, LEFT_PATH, OWNER, REQUEST_ID, SERVE_PREFIX, STARTED, UNSERVED, Answer, AnyFrame
from evener.sandbox_runner.owners import Owners

FIRST_PAUSE_SECONDS: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 2.0
CONNECT_SECONDS: Final = 5.0
MAX_FRAME_BYTES: Final = 256 * 1024 * 1024
LEFT_TRIES: Final = 5
PASSING: Final = frozenset(
    {HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.INTERNAL_SERVER_ERROR, HTTPStatus.BAD_GATEWAY, HTTPStatus.GATEWAY_TIMEOUT}
)
"""Statuses of an answer without a body: the gateway lost the call before it could say anything in the harness's dialect."""
SETTLED: Final = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.GONE})
"""The gateway took the note that a harness left, or its session has ended."""

log = structlog.get_logger()


class Broken(Exception):
    """The gateway was lost before it answered."""


class Lost(Struct, frozen=True):
    """No gateway has the call at the moment; it is sent again."""


class _Error(Struct, frozen=True):
    message: str = ""


class _ErrorBody(Struct, frozen=True):
    error: _Error = _Error()


_errors: Final = msgspec.json.Decoder(_ErrorBody)


class Call(Struct, kw_only=True):
    """A request of the harness, kept until its answer is through."""

    path: str
    """With its query."""
    body: bytes
    headers: Mapping[str, str]
    request_id: str
    capability: str
    partition: int
    started: bool = False
    """The headers of its answer are out."""
    repeats: str | None = None
    """The unserved request that its client sends again by it."""
    trouble: str = ""
    """What the last gateway that did not answer said instead."""


class GatewayClient:
    """Finds the owner of a call's partition and talks frames to it."""

    def __init__(self, http: aiohttp.ClientSession, owners: Owners) -> None:
        self._http = http
        self._owners = owners

    async def frames(self, call: Call) -> AsyncGenerator[AnyFrame | Lost, None]:
        """Yield what gateways say, `Lost` before each new try; the last is an Answer. Goes on until closed.

        The pauses between tries grow whatever a try got: each is admitted before what it needs fails it.
        """
        pause, hint = FIRST_PAUSE_SECONDS, None
        while True:
            address = hint or self._owners.address(call.partition) or await self._owners.moved(call.partition, ())
            hint = None
            try:
                async with aclosing(self._try(call, address)) as frames:
                    async for frame in frames:
                        yield frame
                        if isinstance(frame, Answer):
                            return
            except _Elsewhere as elsewhere:
                hint = elsewhere.address
            except (Broken, BadRecord, aiohttp.ClientError, OSError, TimeoutError) as cause:
                call.trouble = f"{address}: {cause}"
                log.info("call_sent_again", request_id=call.request_id, gateway=address, reason=repr(cause))
            except _Unknowing as cause:
                call.trouble = f"{address}: {cause}"
                log.warning("gateway_does_not_know_session", request_id=call.request_id, gateway=address, reason=str(cause))
            yield Lost()
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def left(self, call: Call) -> None:
        """Tell the owner that the harness left. A few tries; a gateway that never hears of it aborts the call by itself."""
        pause = FIRST_PAUSE_SECONDS
        for _ in range(LEFT_TRIES):
            address = self._owners.address(call.partition)
            with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                if address is not None and await self._post_left(call, address) in SETTLED:
                    return
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _post_left(self, call: Call, address: str) -> int:
        url = address + LEFT_PATH.format(request_id=call.request_id)
        timeout = aiohttp.ClientTimeout(total=CONNECT_SECONDS)
        async with self._http.post(url, headers=_ours(call), timeout=timeout, allow_redirects=False) as response:
            if response.status != HTTPStatus.TEMPORARY_REDIRECT:
                return response.status
            owner = response.headers[OWNER]
        async with self._http.post(owner + LEFT_PATH.format(request_id=call.request_id), headers=_ours(call), timeout=timeout) as response:
            return response.status

    async def _try(self, call: Call, address: str) -> AsyncGenerator[AnyFrame, None]:
        """Yield one gateway's frames up to its Answer. Raises Broken or _Elsewhere where it has none."""
        known = (address, self._owners.address(call.partition))
        async with self._post(call, address) as response:
            if response.status != HTTPStatus.OK:
                yield await _refusal(response)
                return
            async with _moves(self._owners, call.partition, known) as moved:
                while (frame := await _either(_read_frame(response.content), moved)) is not None:
                    if isinstance(frame, Answer) and frame.status in PASSING and not frame.body:
                        raise Broken(frame.detail or f"status {frame.status}")
                    yield frame
        msg = f"{address} ended its stream without an answer"
        raise Broken(msg)

    @asynccontextmanager
    async def _post(self, call: Call, address: str) -> AsyncIterator[aiohttp.ClientResponse]:
        url = URL(address + SERVE_PREFIX + call.path, encoded=True)
        headers = {**call.headers, **_ours(call)}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        async with self._http.post(url, data=call.body, headers=headers, timeout=timeout, allow_redirects=False) as response:
            yield response


class _Unknowing(Exception):
    """The gateway cannot open the capability, or does not know the session: it is misconfigured, or not the owner any more."""


class _Elsewhere(Exception):
    """Another gateway owns the session."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.address = address


def _ours(call: Call) -> dict[str, str]:
    started = {STARTED: "1"} if call.started else {}
    repeated = {UNSERVED: call.repeats} if call.repeats is not None else {}
    return {CAPABILITY: call.capability, REQUEST_ID: call.request_id, **started, **repeated}


async def _refusal(response: aiohttp.ClientResponse) -> Answer:
    """Return the answer of a gateway whose session has ended. Raises _Elsewhere for a redirection, else what tells its trouble."""
    if response.status == HTTPStatus.TEMPORARY_REDIRECT:
        raise _Elsewhere(response.headers[OWNER])
    body = await response.read()
    if response.status == HTTPStatus.GONE:
        return Answer(status=HTTPStatus.GONE, body=body)
    trouble = f"status {response.status}: {error_message(body)}"
    raise Broken(trouble) if response.status >= HTTPStatus.INTERNAL_SERVER_ERROR else _Unknowing(trouble)


def error_message(body: bytes) -> str:
    """Return the message in an error's body; what cannot be read is left out."""
    try:
        return _errors.decode(body).error.message
    except (msgspec.DecodeError, msgspec.ValidationError):
        return ""


async def _read_frame(stream: aiohttp.StreamReader) -> AnyFrame | None:
    """Return the next frame. None: the stream ended between frames."""
    try:
        size = int.from_bytes(await stream.readexactly(4), "big")
        if size > MAX_FRAME_BYTES:
            msg = f"a frame of {size} bytes"
            raise Broken(msg)
        return decode_frame(await stream.readexactly(size))
    except asyncio.IncompleteReadError as cut:
        if cut.partial:
            msg = "the stream was cut within a frame"
            raise Broken(msg) from cut
        return None


@asynccontextmanager
async def _moves(owners: Owners, partition: int, known: Collection[str | None]) -> AsyncIterator[asyncio.Task[str]]:
    """Watch for another owner: the one that we talk to may be frozen, and would keep us waiting for ever."""
    task = asyncio.create_task(owners.moved(partition, known))
    try:
        yield task
    finally:
        task.cancel()


async def _either(reading: Coroutine[Any, Any, AnyFrame | None], moved: asyncio.Task[str]) -> AnyFrame | None:
    """Return the next frame. Raises Broken where the partition moves before it comes."""
    task = asyncio.create_task(reading)
    try:
        await asyncio.wait({task, moved}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
    finally:
        task.cancel()
    msg = "the partition has another owner"
    raise Broken(msg)
