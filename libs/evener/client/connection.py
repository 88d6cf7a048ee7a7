"""HTTP requests to Evener's control endpoints, with the operator's token, and with an error for every failure."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import aiohttp
import msgspec

from evener.client.errors import ClientError, Elsewhere, RequestRefused, TokenRefused, Unavailable, Unreachable
from evener.client.views import ProblemAnswer

CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 60.0
"""The longest pause between two pieces of an answer. Idle streams send empty lines."""

_problems: Final = msgspec.json.Decoder(ProblemAnswer)

AnswerT = TypeVar("AnswerT")
Query = Mapping[str, object]
"""Parameters of the URL. Those that are None are omitted."""


class Connection:
    """A pool of connections to one deployment."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url.rstrip("/")
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=ANSWER_SECONDS)
        self._session = aiohttp.ClientSession(timeout=timeout, headers={"authorization": f"Bearer {token}"}, read_bufsize=2**20)

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
        base = at or self.url
        params = {name: str(value) for name, value in (query or {}).items() if value is not None}
        headers = {"accept": accept}
        try:
            async with self._session.request(method, base + path, data=body, params=params, headers=headers) as response:
                if response.status >= 300:  # noqa: PLR2004 - HTTP
                    raise refusal(response.status, await response.read(), f"{method} {base}{path}")
                yield response
        except aiohttp.ClientConnectorError as cause:
            msg = f"no evener is running at {base}"
            raise Unreachable(msg) from cause
        except (aiohttp.ClientError, TimeoutError) as cause:
            msg = f"the connection to {base} broke: {cause or type(cause).__name__}"
            raise Unavailable(msg) from cause


def refusal(status: int, body: bytes, doing: str) -> ClientError:
    """Return the error for an answer of status 300 and above."""
    try:
        problem = _problems.decode(body).error
        what, field = problem.message, problem.field
    except (msgspec.DecodeError, UnicodeDecodeError):
        what, field = f"{doing} was answered with status {status}", None
    match status:
        case 401:
            return TokenRefused(f"{doing} refuses the token")
        case 503:
            return (Elsewhere if field else Unavailable)(what.rstrip("."))
        case _ if status >= 500:  # noqa: PLR2004 - HTTP
            return ClientError(what)
        case _:
            return RequestRefused(f"{field}: {what}" if field and field not in what else what, status=status, field=field)
