"""HTTP to an engine: JSON and event streams, with an error for every failure."""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from http import HTTPStatus
from typing import Any, Final

import aiohttp
import msgspec
from msgspec import Struct

from evener.engines.port import HEALTH_SECONDS, EngineError, EngineUnreachable, GenerateRequest
from evener.runtime.threads import Threads

ENGINE_CONNECT_SECONDS: Final = 10.0
CONTROL_SECONDS: Final = 900.0
"""How long an engine may be silent on any request but sampling: loading weights takes minutes. Sampling may be silent for ever."""
KEEPALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000}
"""Socket options by which the kernel finds a host that is gone: after 30 s of silence it probes three times, 10 s apart; unacknowledged
data breaks the connection after 60,000 ms. A system may lack some of them."""
REUSE_SECONDS: Final = 4.0
"""A connection is reused within this time: vLLM closes one that was idle for 5 s."""
LINE_BYTES: Final = 8 << 20
SHORT_IDS: Final = 4_000
"""A prompt of this many ids is encoded in a tenth of a millisecond."""
ENCODING: Final = Threads("encode", 1)
"""The thread that encodes long prompts, one after another: a call of 64 answers sends as many requests at once."""
HEALTH: Final = "/health"
JSON_HEADERS: Final = {"content-type": "application/json"}
QUOTED_CHARACTERS: Final = 200
"""How much of an engine's answer is quoted in an error."""
ENGINE_HOST: Final = "127.0.0.1"
"""Where engines that Evener starts listen: nobody else on the network reaches them."""
BUSY: Final = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT})


class HttpRefusal(EngineError):
    """The engine refused the request for the quoted reason. Look at its log."""

    def __init__(self, what: str, status: int, body: str) -> None:
        super().__init__(what, status, body)
        self.status = status
        self.body = body


class EngineLink(Struct, frozen=True):
    """How an engine is reached, besides its URL."""

    tls: ssl.SSLContext | None = None
    """The authorities that are trusted. None: those that the system trusts."""
    api_key: str | None = None
    """The key that every request carries. None: none does."""


PLAIN_LINK: Final = EngineLink()


class EngineHttp:
    """Connections to one engine. Closing or cancelling a request closes its connection, which tells the engine to abort it."""

    def __init__(
        self, url: str, *, silence_seconds: float = CONTROL_SECONDS, refuses_by_500: bool = False, link: EngineLink = PLAIN_LINK
    ) -> None:
        """`refuses_by_500`: a status of 500 is a refusal with a reason. Otherwise the engine has failed and counts as unreachable."""
        self.url: Final = url.rstrip("/")
        self._refuses_by_500: Final = refuses_by_500
        self._silence_seconds: Final = silence_seconds
        self._link: Final = link
        self._session: aiohttp.ClientSession | None = None

    async def get(self, path: str, *, silence_seconds: float | None = None) -> Any:
        """Return the JSON answer to a GET. `silence_seconds`: a limit of its own. None: that of the connections."""
        async with self._request("GET", path, None, silence_seconds or self._silence_seconds) as response:
            return self.parse(await self._text(response, path), path)

    async def post(self, path: str, body: Any, *, samples: bool = False) -> Any:
        """Return the JSON answer to a POST. `samples`: the answer may take any time."""
        silence = None if samples else self._silence_seconds
        async with self._request("POST", path, msgspec.json.encode(body), silence) as response:
            return self.parse(await self._text(response, path), path)

    async def health(self, seconds: float = HEALTH_SECONDS) -> None:
        """Check that the server is healthy. Raises EngineUnreachable. A server without `/health` is healthy if it answers at all."""
        try:
            with suppress(HttpRefusal):
                async with asyncio.timeout(seconds), self._request("GET", HEALTH, None, None) as response:
                    await response.read()
        except TimeoutError as cause:
            msg = f"GET {self.url}{HEALTH}: no answer in {seconds:.0f} s"
            raise EngineUnreachable(msg) from cause

    async def events(self, path: str, encode: Callable[[], Awaitable[bytes]]) -> AsyncGenerator[list[bytes], None]:
        """Yield the data of the server-sent events that answer a POST of JSON, in lists of those that arrived together.

        `encode` makes the body. Nobody holds the body after it was sent: an answer may take minutes, and a long prompt is large.
        """
        async with self._request("POST", path, await encode(), None) as response:
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
        """Return JSON text as Python values. Raises EngineError quoting it."""
        try:
            return json.loads(text)
        except ValueError as cause:
            raise self.rubbish(path, text if isinstance(text, str) else text.decode(errors="replace")) from cause

    @contextmanager
    def reading(self, path: str, answer: Any) -> Iterator[None]:
        """Raise EngineError quoting the answer if a field that this block reads is missing."""
        try:
            yield
        except (LookupError, TypeError, ValueError, AttributeError, msgspec.ValidationError) as cause:
            raise self.rubbish(path, answer) from cause

    def rubbish(self, path: str, came: object) -> EngineError:
        """Return the error that quotes an unexpected answer."""
        return EngineError(f"{self.url}{path} answered {_shown(str(came))!r}")

    async def aclose(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def _request(self, method: str, path: str, body: bytes | None, silence: float | None) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request. `silence`: the engine is unreachable after this many seconds without a byte."""
        if self._session is None:  # the caller limits the calls in flight
            self._session = self._opened()
        if self._session.closed:
            msg = f"{method} {self.url}{path}: its connections were closed"
            raise EngineUnreachable(msg)
        timeout = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=ENGINE_CONNECT_SECONDS, sock_read=silence)
        try:
            asking = self._session.request(method, f"{self.url}{path}", data=body, headers=JSON_HEADERS, timeout=timeout)
            del body
            async with asking as response:
                if response.status != HTTPStatus.OK:
                    raise self._refusal(path, response.status, await self._text(response, path))
                yield response
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError, OSError) as cause:
            msg = f"{method} {self.url}{path}: {cause or type(cause).__name__}"
            raise EngineUnreachable(msg) from cause
        except aiohttp.ClientError as cause:
            raise self.rubbish(path, cause) from cause

    def _opened(self) -> aiohttp.ClientSession:
        tls = True if self._link.tls is None else self._link.tls
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=REUSE_SECONDS, socket_factory=kept_alive, ssl=tls)
        key = {} if self._link.api_key is None else {"authorization": f"Bearer {self._link.api_key}"}
        return aiohttp.ClientSession(connector=connector, read_bufsize=LINE_BYTES, headers=key)

    def _refusal(self, path: str, status: int, text: str) -> EngineError:
        what = f"{self.url}{path} answered {status}: {_shown(text)}"
        gone = status in BUSY or (status >= HTTPStatus.INTERNAL_SERVER_ERROR and not self._refuses_by_500)
        return EngineUnreachable(what) if gone else HttpRefusal(what, status, text)

    async def _text(self, response: aiohttp.ClientResponse, path: str) -> str:
        body = await response.read()
        try:
            return body.decode()
        except UnicodeDecodeError as cause:
            raise self.rubbish(path, body) from cause

    def _data(self, lines: list[bytes], path: str) -> list[bytes]:
        """Return the data in complete lines of an event stream."""
        data: list[bytes] = []
        for line in lines:
            if line.startswith(b"data:"):
                data.append(line[5:].strip())
            elif (kept := line.strip()) and kept[:1] != b":":
                raise self.rubbish(path, kept.decode(errors="replace"))
        return data


async def encoded(encode: Callable[[GenerateRequest], bytes], request: GenerateRequest) -> bytes:
    """Return the body of a request. A long one is encoded in a thread."""
    short = len(request.ids) <= SHORT_IDS and not request.images
    return encode(request) if short else await ENCODING.run(encode, request)


def kept_alive(address: tuple[Any, ...]) -> socket.socket:
    """Return a socket for an address (`getaddrinfo`) whose kernel notices when the other side is gone."""
    family, kind, protocol = address[:3]
    opened = socket.socket(family, kind, protocol)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if (option := getattr(socket, name, None)) is not None:
            opened.setsockopt(socket.IPPROTO_TCP, option, value)
    return opened


def _shown(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= QUOTED_CHARACTERS else f"{line[:QUOTED_CHARACTERS]}..."
