"""The relay's side of the conversation with gateways: one call, sent again under the same id until a gateway answers it."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import partial
from http import HTTPStatus
from itertools import islice
from typing import Final, Protocol, TypeVar

import aiohttp
import msgspec
import structlog
from msgspec import Struct
from yarl import URL

from evener.client.views import ProblemAnswer
from evener.proto.codec import BadRecord, decode_frame
from evener.proto.framing import FrameReader, StreamCut
from evener.proto.relay import (
    CAPABILITY,
    DISCONNECT_PATH,
    MOVING,
    OWNER,
    REPEATS,
    REQUEST_ID,
    SERVE_PREFIX,
    STARTED,
    STEP,
    Answer,
    AnyFrame,
)
from evener.runtime.backoff import Backoff
from evener.service.owners import Moved, Owners

AGAIN: Final = Backoff(0.1, 2.0)
"""The pauses before a call is sent again."""
CONNECT_SECONDS: Final = 5.0
DISCONNECT_TRIES: Final = 5
PASSING: Final = frozenset(
    {HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.INTERNAL_SERVER_ERROR, HTTPStatus.BAD_GATEWAY, HTTPStatus.GATEWAY_TIMEOUT}
)
"""Statuses of an answer without a body: the gateway lost the call before it could say anything in the harness's dialect."""
SETTLED: Final = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.GONE})
"""The gateway noted that a harness disconnected, or the session has ended."""

T = TypeVar("T")
log = structlog.get_logger()


class Broken(Exception):
    """The gateway was lost before it answered."""


LOST: Final = (Broken, Moved, BadRecord, StreamCut, aiohttp.ClientError, OSError, TimeoutError)
"""A call that ends with one of these is sent again."""


class TryLost(Struct, frozen=True):
    """A try of the call was lost, and it is sent again."""


_errors: Final = msgspec.json.Decoder(ProblemAnswer)


class RelayedCall(Struct, kw_only=True):
    """A request of the harness, kept until its answer is delivered."""

    path: str
    """The path with its query."""
    body: bytes
    headers: Mapping[str, str]
    request_id: str
    capability: str
    partition: int
    step: int = 0
    """The number of the task's step that runs, from 1. 0: the task has no steps."""
    trace: Mapping[str, str] = {}
    started: bool = False
    """Whether the headers of its answer have left."""
    repeats: str | None = None
    """The failed request that it repeats."""
    trouble: str = ""
    """The last gateway's error, which came instead of an answer."""


class Patience(Protocol):
    """How a caller waits that has other work meanwhile."""

    async def __call__(self, waiting: Callable[[], Awaitable[T]], /, *, handover: bool = False) -> T:
        """Return the result of a wait, which may be cancelled and restarted without losing anything.

        `handover`: the wait is for the end of a handover, whose length its gateway limits.
        """
        ...


class GatewayClient:
    """Finds the owner of a call's partition and exchanges frames with it."""

    def __init__(self, http: aiohttp.ClientSession, owners: Owners) -> None:
        self._http = http
        self._owners = owners

    async def frames(self, call: RelayedCall, patiently: Patience) -> AsyncGenerator[AnyFrame | TryLost, None]:
        """Yield the frames of gateways, and `TryLost` after each try that was lost. The last frame is an Answer. Continues until closed.

        A partition that moves loses nothing: its next owner is waited for. The pauses end as soon as another gateway owns the partition.

        The pauses between tries grow even if a try was admitted: it may be admitted before what it needs fails it.
        """
        begun_at = hint = None
        for pause in AGAIN:
            address = hint or await self._owner(call.partition, begun_at, patiently)
            owner, hinted, hint = self._owners.hold(call.partition), hint is not None, None
            try:
                async with aclosing(self._try(call, address, patiently)) as frames:
                    async for frame in frames:
                        begun_at = address
                        yield frame
                        if isinstance(frame, Answer):
                            return
            except _Elsewhere as elsewhere:
                hint = elsewhere.address
                if not hinted:
                    continue
            except _Moving:
                begun_at, call.trouble = None, f"{address} hands the partition over"
            except LOST as cause:
                call.trouble = f"{address}: {cause}"
                log.info("call_sent_again", request_id=call.request_id, gateway=address, reason=repr(cause))
                yield TryLost()
            except _Unknowing as cause:
                call.trouble = f"{address}: {cause}"
                log.warning("gateway_does_not_know_session", request_id=call.request_id, gateway=address, reason=str(cause))
                yield TryLost()
            until = asyncio.get_running_loop().time() + pause
            await patiently(partial(self._owners.pause, call.partition, owner, until))

    async def _owner(self, partition: int, begun_at: str | None, patiently: Patience) -> str:
        """Return the address of the partition's owner.

        A gateway that hands the partition over is asked only for calls that it has begun; for others, wait.
        """
        hold = self._owners.hold(partition)
        if hold is not None and (not hold.releasing or hold.address == begun_at):
            return hold.address
        await patiently(lambda: self._owners.handed_over(partition), handover=True)
        return await patiently(lambda: self._owners.serving(partition))

    async def disconnect(self, call: RelayedCall) -> None:
        """Tell the owner, in a few tries, that the harness disconnected. A gateway that does not learn of it aborts the call by itself."""
        for pause in islice(AGAIN, DISCONNECT_TRIES):
            owner = self._owners.hold(call.partition)
            with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                if owner is not None and await self._post_disconnect(call, owner.address) in SETTLED:
                    return
            await self._owners.pause(call.partition, owner, asyncio.get_running_loop().time() + pause)

    async def _post_disconnect(self, call: RelayedCall, address: str) -> int:
        url = address + DISCONNECT_PATH.format(request_id=call.request_id)
        timeout = aiohttp.ClientTimeout(total=CONNECT_SECONDS)
        async with self._http.post(url, headers=_ours(call), timeout=timeout, allow_redirects=False) as response:
            if response.status != HTTPStatus.TEMPORARY_REDIRECT:
                return response.status
            owner = response.headers[OWNER]
        async with self._http.post(
            owner + DISCONNECT_PATH.format(request_id=call.request_id), headers=_ours(call), timeout=timeout
        ) as response:
            return response.status

    async def _try(self, call: RelayedCall, address: str, patiently: Patience) -> AsyncGenerator[AnyFrame, None]:
        """Yield one gateway's frames up to its Answer. Raises Broken, _Elsewhere or _Moving if it has none.

        Raises Moved when another gateway owns the partition: this one may be frozen, and would keep the relay waiting for ever.
        """
        known = (address, self._owners.address(call.partition))
        with self._owners.watched(call.partition, known):
            posting = self._post(call, address)
            async with await (_once(patiently, posting) if call.started else posting) as response:
                if response.status != HTTPStatus.OK:
                    yield await _refusal(response)
                    return
                reader, begun = FrameReader(response.content), False
                while (body := await patiently(reader.next)) is not None:
                    frame = decode_frame(body)
                    if isinstance(frame, Answer) and frame.status in PASSING and not frame.body:
                        raise Broken(frame.detail or f"status {frame.status}")
                    begun = True
                    yield frame
        if not begun:
            raise _Moving
        msg = f"{address} ended its stream without an answer"
        raise Broken(msg)

    async def _post(self, call: RelayedCall, address: str) -> aiohttp.ClientResponse:
        url = URL(address + SERVE_PREFIX + call.path, encoded=True)
        headers = {**call.headers, **_ours(call)}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        return await self._http.post(url, data=call.body, headers=headers, timeout=timeout, allow_redirects=False)


class _Unknowing(Exception):
    """The gateway cannot open the capability, or does not know the session: it is misconfigured, or no longer the owner."""


class _Moving(Exception):
    """The partition is on its way to another gateway, which has begun nothing of the call."""


class _Elsewhere(Exception):
    """Another gateway owns the session."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.address = address


def _ours(call: RelayedCall) -> dict[str, str]:
    started = {STARTED: "1"} if call.started else {}
    repeated = {REPEATS: call.repeats} if call.repeats is not None else {}
    stepped = {STEP: str(call.step)} if call.step else {}
    return {**call.trace, CAPABILITY: call.capability, REQUEST_ID: call.request_id, **started, **repeated, **stepped}


async def _once(patiently: Patience, work: Awaitable[T]) -> T:
    """Wait for something that cannot be restarted."""
    task = asyncio.ensure_future(work)
    try:
        await patiently(lambda: asyncio.wait([task]))
        return task.result()
    finally:
        task.cancel()


async def _refusal(response: aiohttp.ClientResponse) -> Answer:
    """Return the answer of a gateway whose session has ended. Raises _Elsewhere, _Moving, or for other answers the gateway's trouble."""
    if response.status == HTTPStatus.TEMPORARY_REDIRECT:
        raise _Elsewhere(response.headers[OWNER])
    if MOVING in response.headers:
        raise _Moving
    body = await response.read()
    if response.status == HTTPStatus.GONE:
        return Answer(status=HTTPStatus.GONE, body=body)
    trouble = f"status {response.status}: {error_message(body)}"
    raise Broken(trouble) if response.status >= HTTPStatus.INTERNAL_SERVER_ERROR else _Unknowing(trouble)


def error_message(body: bytes) -> str:
    """Return the message in an error's body, empty if it cannot be read."""
    try:
        return _errors.decode(body).error.message
    except (msgspec.DecodeError, msgspec.ValidationError):
        return ""
