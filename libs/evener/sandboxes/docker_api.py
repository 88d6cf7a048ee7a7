"""The requests to a Docker daemon that the `docker` backend makes, over its socket.

Neither client library bounds what it reads: an archive of a container comes as a whole, and so does a program's output.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp

from evener.sandboxes.port import SandboxError

API: Final = "/v1.41"
UNIX: Final = "unix://"
ANSWER_BYTES: Final = 64 << 20
"""The largest answer that is read, except archives and output, which have limits of their own."""
DAEMON_CONNECT_SECONDS: Final = 10.0
HTTP_PORT: Final = 80
DAEMON_READ_BYTES: Final = 1 << 16
CONTENT_LENGTH: Final = re.compile(rb"(?i)\r\ncontent-length: *([0-9]{1,9})\r\n")
HEADER_BYTES: Final = 8
"""Each frame of a program's output has a header: the stream's number, three zeros, and the length of what follows."""


class DockerError(SandboxError):
    """Look at the Docker daemon: whether it runs, and what its log says."""

    def __init__(self, what: str, status: int = 0) -> None:
        super().__init__(what)
        self.status = status
        """The HTTP status of the answer. 0: there was none."""


class Docker:
    """A connection to a daemon. All methods raise DockerError."""

    def __init__(self, session: aiohttp.ClientSession, base: str, host: str) -> None:
        self._session = session
        self._base = base
        self.host = host

    async def get(self, at: str, **params: str) -> Any:
        """Return the JSON of an answer."""
        return await self._asked("GET", at, params)

    async def post(self, at: str, body: object = None, **params: str) -> Any:
        """Return the JSON of an answer. None: it has none."""
        return await self._asked("POST", at, params, json=body)

    async def put(self, at: str, body: bytes, **params: str) -> None:
        """Send a tar."""
        await self._asked("PUT", at, params, data=body)

    async def delete(self, at: str, **params: str) -> None:
        """Remove an object of the daemon."""
        await self._asked("DELETE", at, params)

    @asynccontextmanager
    async def stream(self, method: str, at: str, body: object = None, **params: str) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield an answer whose content is to be read piece by piece."""
        sent = {"data": body} if isinstance(body, bytes) else {"json": body}
        try:
            async with self._session.request(method, f"{self._base}{at}", params=params, **sent) as response:
                if response.status >= HTTPStatus.BAD_REQUEST:
                    raise DockerError(_said(method, at, await response.content.read(DAEMON_READ_BYTES)), response.status)
                yield response
        except (aiohttp.ClientError, OSError) as cause:
            msg = f"no answer from the Docker daemon at {self.host} to {method} {at}: {cause}"
            raise DockerError(msg) from cause

    async def attach(self, at: str, body: object) -> "Attached":
        """Return the streams of a program, to which a request leads that leaves HTTP."""
        sent = json.dumps(body).encode()
        request = f"POST {API}{at} HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Type: application/json\r\n"
        try:
            async with asyncio.timeout(DAEMON_CONNECT_SECONDS):
                reader, writer = await self._connected()
        except OSError as cause:  # TimeoutError is one
            msg = f"no answer from the Docker daemon at {self.host} to POST {at}: {cause}"
            raise DockerError(msg) from cause
        attached = Attached(reader, writer)
        try:
            writer.write(f"{request}Content-Length: {len(sent)}\r\n\r\n".encode() + sent)
            await attached.upgraded(at)
        except BaseException:
            attached.close()
            raise
        return attached

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.host.startswith(UNIX):
            return await asyncio.open_unix_connection(self.host.removeprefix(UNIX))
        place = urlsplit(self.host)
        return await asyncio.open_connection(place.hostname, place.port or HTTP_PORT)

    async def _asked(self, method: str, at: str, params: Mapping[str, str], **body: Any) -> Any:
        content = body.get("data", body.get("json"))
        async with self.stream(method, at, content, **params) as response:
            answer = bytearray()
            while block := await response.content.read(DAEMON_READ_BYTES):
                answer += block
                if len(answer) > ANSWER_BYTES:
                    msg = f"the answer to {method} {at} is longer than {ANSWER_BYTES} bytes"
                    raise DockerError(msg)
        return json.loads(answer) if answer and response.content_type == "application/json" else None


class Attached:
    """The stdin of a program without a terminal, and what it prints. All methods raise DockerError."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @property
    def has_ended(self) -> bool:
        """Whether nothing more comes."""
        return self._reader.at_eof() or self._reader.exception() is not None

    async def upgraded(self, at: str) -> None:
        """Read the daemon's answer."""
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
            status = int(head.split(b" ", 2)[1])
            if status < HTTPStatus.BAD_REQUEST:
                return
            length = CONTENT_LENGTH.search(head)
            body = b"" if length is None else await self._reader.readexactly(min(int(length[1]), DAEMON_READ_BYTES))
        except (OSError, EOFError, asyncio.LimitOverrunError, IndexError, ValueError) as cause:
            msg = f"no answer from the Docker daemon to POST {at}: {cause}"
            raise DockerError(msg) from cause
        raise DockerError(_said("POST", at, body), status)

    def send(self, data: bytes) -> None:
        """Write to the program's stdin, without waiting."""
        self._writer.write(data)

    async def send_all(self, data: bytes) -> None:
        """Write to the program's stdin, and close it."""
        try:
            self._writer.write(data)
            self._writer.write_eof()
            await self._writer.drain()
        except OSError as cause:
            msg = f"the connection to the Docker daemon broke: {cause}"
            raise DockerError(msg) from cause

    async def output(self) -> AsyncIterator[tuple[int, bytes]]:
        """Yield what the program prints, with the number of its stream. The order is kept within a stream, not between the two."""
        stream = left = 0
        header = b""
        while data := await self._read():
            while data:
                if left == 0:
                    header, data = header + data[: HEADER_BYTES - len(header)], data[HEADER_BYTES - len(header) :]
                    if len(header) == HEADER_BYTES:
                        stream, left, header = header[0], int.from_bytes(header[4:]), b""
                else:
                    piece, data = data[:left], data[left:]
                    left -= len(piece)
                    yield stream, piece

    def close(self) -> None:
        """Close the connection. A program that reads its stdin finds its end."""
        self._writer.close()

    async def _read(self) -> bytes:
        try:
            return await self._reader.read(DAEMON_READ_BYTES)
        except OSError as cause:
            msg = f"the connection to the Docker daemon broke: {cause}"
            raise DockerError(msg) from cause


@asynccontextmanager
async def open_docker(host: str) -> AsyncIterator[Docker]:
    """Open a connection to the daemon at `unix://PATH` or `http://HOST:PORT`. Nothing is asked yet."""
    connector = aiohttp.UnixConnector(host.removeprefix(UNIX), limit=0) if host.startswith(UNIX) else aiohttp.TCPConnector(limit=0)
    base = f"http://docker{API}" if host.startswith(UNIX) else f"{host}{API}"
    async with aiohttp.ClientSession(
        connector=connector, timeout=aiohttp.ClientTimeout(total=None, sock_connect=DAEMON_CONNECT_SECONDS)
    ) as session:
        yield Docker(session, base, host)


def _said(method: str, path: str, body: bytes) -> str:
    try:
        message = json.loads(body)["message"]
    except (ValueError, KeyError, TypeError):
        message = body.decode(errors="replace")
    return f"{method} {path}: {message}"
