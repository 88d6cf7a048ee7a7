"""HTTP requests to Evener's control endpoints, with the operator's token, and with an error for every failure."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Final, TypeVar

import aiohttp
import msgspec
from msgspec import Struct

from evener.client.errors import (
    ClientError,
    Elsewhere,
    NotAllowed,
    NotTrusted,
    RequestRefused,
    StandsBy,
    TokenRefused,
    Unavailable,
    Unreachable,
)
from evener.client.views import ACTIVE_HEADER, ProblemAnswer
from evener.runtime.backoff import Backoff
from evener.runtime.tls import client_context

SERVICE_CONNECT_SECONDS: Final = 5.0
TAKE_OVER_SECONDS: Final = 30.0
"""How long a request waits for a standby to take over."""
TAKE_OVER_PAUSES: Final = Backoff(0.1, 1.0)
SILENCE_SECONDS: Final = 60.0
"""The longest pause between two pieces of an answer. Idle streams send empty lines."""

_problems: Final = msgspec.json.Decoder(ProblemAnswer)

AnswerT = TypeVar("AnswerT")
Query = Mapping[str, object]
"""Parameters of the URL. Those that are None are omitted."""


class Connection:
    """A pool of connections to one deployment. Requests to its scheduler go to the active one of those that stand by for each other."""

    def __init__(self, url: str, token: str, ca_file: str | None = None) -> None:
        """`url`: the scheduler's base URL, or several, separated by commas, of schedulers of the same name.

        `ca_file`: the authorities that sign their certificates; None: those of the system. Raises ConfigError.
        """
        self._given = tuple(each.strip().rstrip("/") for each in url.split(","))
        self.url = self._given[0]
        """The base URL of the scheduler that answered last."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=SERVICE_CONNECT_SECONDS, sock_read=SILENCE_SECONDS)
        headers, tls = {"authorization": f"Bearer {token}"}, aiohttp.TCPConnector(ssl=client_context(ca_file))
        self._session = aiohttp.ClientSession(timeout=timeout, headers=headers, connector=tls, read_bufsize=2**20)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def call(
        self,
        method: str,
        path: str,
        answer: msgspec.json.Decoder[AnswerT],
        *,
        body: object = None,
        at: str | None = None,
        query: Query | None = None,
    ) -> AnswerT:
        """Return the JSON answer as `answer` decodes it. Raises ClientError."""
        data = await self.data(method, path, body=None if body is None else msgspec.json.encode(body), at=at, query=query)
        try:
            return answer.decode(data)
        except msgspec.DecodeError as cause:
            msg = f"{method} {path} got an unexpected answer: {cause}"
            raise ClientError(msg) from cause

    async def data(self, method: str, path: str, *, body: bytes | None = None, at: str | None = None, query: Query | None = None) -> bytes:
        """Return the body of the answer. `at` is the base URL of another instance. Raises ClientError."""
        async with self.answer(method, path, body=body, at=at, query=query) as response:
            return await response.read()

    @asynccontextmanager
    async def answer(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        at: str | None = None,
        accept: str = "*/*",
        query: Query | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open an answer of status 200 to 299. Raises ClientError, also for a failure while the answer is read."""
        asked = _Request(
            method=method,
            path=path,
            body=body,
            headers={"accept": accept},
            params={name: str(value) for name, value in (query or {}).items() if value is not None},
        )
        async with AsyncExitStack() as stack:
            base, response = await self._of_the_active(stack, asked) if at is None else (at, await self._opened(stack, asked, at))
            with _breaks(base):
                yield response

    async def _of_the_active(self, stack: AsyncExitStack, asked: "_Request") -> tuple[str, aiohttp.ClientResponse]:
        """Return the answer of the active scheduler with its base URL. Waits for one as long as another stands by."""
        until = time.monotonic() + TAKE_OVER_SECONDS
        for pause in TAKE_OVER_PAUSES:
            try:
                return await self._of_any(stack, asked)
            except StandsBy:
                if time.monotonic() > until:
                    raise
            await asyncio.sleep(pause)
        raise AssertionError

    async def _of_any(self, stack: AsyncExitStack, asked: "_Request") -> tuple[str, aiohttp.ClientResponse]:
        """Ask each scheduler that is known once. Raises StandsBy if one of them answered, but was not active."""
        waiting, tried = [self.url, *self._given], set[str]()
        failures: list[StandsBy | Unreachable] = []
        while waiting:
            base = waiting.pop(0)
            if base in tried:
                continue
            tried.add(base)
            try:
                response = await self._opened(stack, asked, base)
            except StandsBy as standby:
                failures.append(standby)
                waiting[:0] = [standby.active] if standby.active else []
            except Unreachable as silent:
                failures.append(silent)
            else:
                self.url = base
                return base, response
        raise next((failed for failed in failures if isinstance(failed, StandsBy)), failures[0])

    async def _opened(self, stack: AsyncExitStack, asked: "_Request", base: str) -> aiohttp.ClientResponse:
        """Return an answer of status 200 to 299, which is closed with `stack`. Raises ClientError."""
        async with AsyncExitStack() as opening:
            with _breaks(base):
                request = self._session.request(
                    asked.method, base + asked.path, data=asked.body, params=asked.params, headers=asked.headers
                )
                response = await opening.enter_async_context(request)
                if response.status < 300:  # noqa: PLR2004 - HTTP
                    stack.push_async_exit(opening.pop_all())
                    return response
                what, said = f"{asked.method} {base}{asked.path}", await response.read()
        if (active := response.headers.get(ACTIVE_HEADER)) is not None:
            raise StandsBy(_problem(said, what, response.status)[0], active or None)
        raise refusal(response.status, said, what)


class _Request(Struct, frozen=True, kw_only=True):
    """A request, but for the instance that it goes to."""

    method: str
    path: str
    body: bytes | None
    headers: dict[str, str]
    params: dict[str, str]


@contextmanager
def _breaks(base: str) -> Iterator[None]:
    """Name what breaks in this block after the instance at `base`."""
    try:
        yield
    except aiohttp.ClientSSLError as cause:
        msg = f"no TLS with {base}: {cause}"
        raise NotTrusted(msg) from cause
    except aiohttp.ClientConnectorError as cause:
        msg = f"no evener is running at {base}"
        raise Unreachable(msg) from cause
    except (aiohttp.ClientError, TimeoutError) as cause:
        msg = f"the connection to {base} broke: {cause or type(cause).__name__}"
        raise Unavailable(msg) from cause


def refusal(status: int, body: bytes, doing: str) -> ClientError:
    """Return the error for an answer of status 300 and above."""
    what, field = _problem(body, doing, status)
    match status:
        case 401:
            return TokenRefused(f"{doing} refuses the token")
        case 403:
            return NotAllowed(what)
        case 503:
            return (Elsewhere if field else Unavailable)(what.rstrip("."))
        case _ if status >= 500:  # noqa: PLR2004 - HTTP
            return ClientError(what)
        case _:
            return RequestRefused(f"{field}: {what}" if field and field not in what else what, status=status, field=field)


def _problem(body: bytes, doing: str, status: int) -> tuple[str, str | None]:
    """Return the message in the body of such an answer, and the field that it names."""
    try:
        problem = _problems.decode(body).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        return f"{doing} was answered with status {status}", None
    return problem.message, problem.field
