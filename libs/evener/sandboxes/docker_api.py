"""The requests to a Docker daemon that the `docker` backend makes, over its socket.

Neither client library bounds what it reads: an archive of a container comes as a whole, and so does a program's output.
"""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Final

import aiohttp

from evener.sandboxes.port import SandboxError

API: Final = "/v1.41"
UNIX: Final = "unix://"
ANSWER_BYTES: Final = 64 << 20
"""The largest answer that is read, except archives and output, which have limits of their own."""
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
                    raise DockerError(_said(method, at, await response.content.read(1 << 16)), response.status)
                yield response
        except (aiohttp.ClientError, OSError) as cause:
            msg = f"no answer from the Docker daemon at {self.host} to {method} {at}: {cause}"
            raise DockerError(msg) from cause

    async def _asked(self, method: str, at: str, params: Mapping[str, str], **body: Any) -> Any:
        content = body.get("data", body.get("json"))
        async with self.stream(method, at, content, **params) as response:
            answer = bytearray()
            while block := await response.content.read(1 << 16):
                answer += block
                if len(answer) > ANSWER_BYTES:
                    msg = f"the answer to {method} {at} is longer than {ANSWER_BYTES} bytes"
                    raise DockerError(msg)
        return json.loads(answer) if answer and response.content_type == "application/json" else None


@asynccontextmanager
async def open_docker(host: str) -> AsyncIterator[Docker]:
    """Open a connection to the daemon at `unix://PATH` or `http://HOST:PORT`. Nothing is asked yet."""
    connector = aiohttp.UnixConnector(host.removeprefix(UNIX), limit=0) if host.startswith(UNIX) else aiohttp.TCPConnector(limit=0)
    base = f"http://docker{API}" if host.startswith(UNIX) else f"{host}{API}"
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None, sock_connect=10)) as session:
        yield Docker(session, base, host)


async def output(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield what a program without a terminal prints, both streams as they come."""
    left = 0
    header = b""
    async for data in response.content.iter_any():
        while data:
            if left == 0:
                header, data = header + data[: HEADER_BYTES - len(header)], data[HEADER_BYTES - len(header) :]  # noqa: PLW2901
                if len(header) == HEADER_BYTES:
                    left, header = int.from_bytes(header[4:]), b""
            else:
                piece, data = data[:left], data[left:]  # noqa: PLW2901
                left -= len(piece)
                yield piece


def _said(method: str, path: str, body: bytes) -> str:
    try:
        message = json.loads(body)["message"]
    except (ValueError, KeyError, TypeError):
        message = body.decode(errors="replace")
    return f"{method} {path}: {message}"
