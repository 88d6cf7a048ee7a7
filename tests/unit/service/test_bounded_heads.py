"""The HTTP listener of every process: headers that go on and on."""

import asyncio
import socket

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from evener.service.bounded_heads import MAX_HEAD_BYTES
from evener.service.listener import Mounts, listen

LONG = 60_000
SECONDS = 30.0
HEAD = b"POST /echo HTTP/1.1\r\nhost: x\r\n"


async def echo(request: Request) -> Response:
    """Answer with the sizes of headers and body."""
    headers = sum(len(name) + len(value) for name, value in request.headers.raw)
    return PlainTextResponse(f"{headers} {len(await request.body())}")


async def exchanged(*pieces: bytes) -> bytes:
    """Return all that the listener says to these pieces."""
    mounts, listening = Mounts(), socket.create_server(("127.0.0.1", 0))
    mounts.replace([Route("/echo", echo, methods=["POST"])])
    async with listen(mounts, listening):
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            async with asyncio.timeout(SECONDS):
                return await reader.read()
        finally:
            writer.close()


async def test_headers_beyond_the_limit_are_answered_with_431() -> None:
    """A single one that never ends, too."""
    many = [f"x-{number}: {'y' * LONG}\r\n".encode() for number in range(MAX_HEAD_BYTES // LONG + 1)]
    for pieces in (many, [b"x: ", *[b"y" * LONG] * len(many)]):
        said = await exchanged(HEAD, *pieces)
        assert said.startswith(b"HTTP/1.1 431 ")
        assert b"send fewer or shorter ones" in said


async def test_long_bodies_and_further_requests_are_not_taken_for_headers() -> None:
    """The limit is of each request's headers."""
    body, long = b"b" * (2 * MAX_HEAD_BYTES), b"x: " + b"y" * LONG + b"\r\n"
    asked = HEAD + long * 5 + b"content-length: %d\r\n" % len(body)
    said = await exchanged(*[asked + b"\r\n", body] * 2, asked + b"connection: close\r\n\r\n", body)

    assert said.count(b"HTTP/1.1 200 OK") == 3
    assert said.count(b" %d" % len(body)) >= 3
