"""HTTP to an engine: JSON and event streams, with every failure named."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus
from typing import Any, Final

import aiohttp
import msgspec

from evener.engines.port import EngineError, EngineUnreachable

CONNECT_SECONDS: Final = 10.0
SILENCE_SECONDS: Final = 900.0
"""A long prompt on a slow engine is silent until its first token; a dead engine closes its connections long before."""
IDLE_SECONDS: Final = 4.0
"""A connection is used again within this time: vLLM closes one that was idle for 5 s."""
LINE_BYTES: Final = 8 << 20
JSON: Final = {"content-type": "application/json"}
SHOWN_CHARACTERS: Final = 200
"""Of what an engine said, in the one line of an error."""
BUSY: Final = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT})


class HttpRefusal(EngineError):
    """The engine refused the request; it says why. Look at its log."""

    def __init__(self, what: str, status: int, body: str) -> None:
        super().__init__(what, status, body)
        self.status = status
        self.body = body


class EngineHttp:
    """Connections to one engine. Closing or cancelling a request closes its connection, which is how an engine learns of it."""

    def __init__(self, url: str, *, silence_seconds: float = SILENCE_SECONDS) -> None:
        self.url: Final = url.rstrip("/")
        self._timeout: Final = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=CONNECT_SECONDS, sock_read=silence_seconds)
        self._session: aiohttp.ClientSession | None = None

    async def get(self, path: str) -> Any:
        """Return the JSON answer to a GET."""
        async with self._request("GET", path, None) as response:
            return self.parse(await self._text(response, path), path)

    async def post(self, path: str, body: Any) -> Any:
        """Return the JSON answer to a POST."""
        async with self._request("POST", path, msgspec.json.encode(body)) as response:
            return self.parse(await self._text(response, path), path)

    async def events(self, path: str, body: bytes) -> AsyncGenerator[list[bytes], None]:
        """Yield the data of the server-sent events that answer a POST of JSON: together those that came together, at least one.

        The body is encoded, because it is held until the last event: the ids of a long prompt are large as Python's numbers.
        """
        async with self._request("POST", path, body) as response:
            if response.content_type != "text/event-stream":
                raise self.rubbish(path, await self._text(response, path))
            begun = b""
            async for part in response.content.iter_any():
                *lines, begun = (begun + part).split(b"\n")
                if len(begun) > LINE_BYTES:
                    raise self.rubbish(path, begun)
                if data := self._data(lines, path):
                    yield data
            if data := self._data([begun], path):
                yield data

    def parse(self, text: str | bytes, path: str) -> Any:
        """Return JSON text as Python values. Raises EngineError naming it."""
        try:
            return json.loads(text)
        except ValueError as cause:
            raise self.rubbish(path, text if isinstance(text, str) else text.decode(errors="replace")) from cause

    @contextmanager
    def reading(self, path: str, answer: Any) -> Iterator[None]:
        """Name the answer in an EngineError if this block does not find in it what it looks for."""
        try:
            yield
        except (LookupError, TypeError, ValueError, AttributeError, msgspec.ValidationError) as cause:
            raise self.rubbish(path, answer) from cause

    def rubbish(self, path: str, came: object) -> EngineError:
        """Return the error that names what came instead of an answer."""
        return EngineError(f"{self.url}{path} answered {_shown(str(came))!r}")

    async def aclose(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def _request(self, method: str, path: str, body: bytes | None) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS)  # whoever calls bounds the calls in flight
            self._session = aiohttp.ClientSession(timeout=self._timeout, connector=connector, read_bufsize=LINE_BYTES)
        try:
            async with self._session.request(method, f"{self.url}{path}", data=body, headers=JSON) as response:
                if response.status != HTTPStatus.OK:
                    raise self._refusal(path, response.status, await self._text(response, path))
                yield response
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError, OSError) as cause:
            msg = f"{method} {self.url}{path}: {cause or type(cause).__name__}"
            raise EngineUnreachable(msg) from cause
        except aiohttp.ClientError as cause:
            raise self.rubbish(path, cause) from cause

    def _refusal(self, path: str, status: int, text: str) -> EngineError:
        what = f"{self.url}{path} answered {status}: {_shown(text)}"
        return EngineUnreachable(what) if status in BUSY else HttpRefusal(what, status, text)

    async def _text(self, response: aiohttp.ClientResponse, path: str) -> str:
        body = await response.read()
        try:
            return body.decode()
        except UnicodeDecodeError as cause:
            raise self.rubbish(path, body) from cause

    def _data(self, lines: list[bytes], path: str) -> list[bytes]:
        """Return the data in whole lines of an event stream."""
        data: list[bytes] = []
        for line in lines:
            if line.startswith(b"data:"):
                data.append(line[5:].strip())
            elif (kept := line.strip()) and kept[:1] != b":":
                raise self.rubbish(path, kept.decode(errors="replace"))
        return data


def _shown(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARACTERS else f"{line[:SHOWN_CHARACTERS]}..."
