"""The HTTP listener of every process: headers that go on and on."""

import asyncio
import socket
from contextlib import suppress

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


async def test_trailers_are_dropped() -> None:
    """The application sees the headers as they were."""
    body = b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n5\r\nhello\r\n0\r\n"
    plain = await exchanged(HEAD + body + b"\r\n")
    assert plain.startswith(b"HTTP/1.1 200 OK")
    for trailers in (b"a: b\r\nexpect: 100-continue\r\n", b"".join(b"t%d: %b\r\n" % (number, b"y" * 1000) for number in range(50))):
        said = await exchanged(HEAD + body, trailers, b"\r\n")
        assert said.partition(b"\r\n\r\n")[2] == plain.partition(b"\r\n\r\n")[2]


async def test_trailers_beyond_the_limit_end_the_connection() -> None:
    """They took as much memory as they were long, before anything was authorized; a single one that never ends, too."""
    many = [f"x-{number}: {'y' * LONG}\r\n".encode() for number in range(100)]
    for trailers in (many, [b"x: ", *[b"y" * LONG] * len(many)]):
        said = b""
        with suppress(ConnectionError):  # it sends on
            said = await exchanged(HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n", *trailers)
        assert said == b""
