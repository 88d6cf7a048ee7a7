"""Bodies of harnesses at the relay: of unknown length, and large ones beside small ones."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import aiohttp
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.integration.test_relay import BODY, LIMITS, NONCE, harness
from tests.support.careful_client import post_when_told
from tests.support.frames_gateway import FramesGateway, frames_gateway
from tests.support.loop import turns
from tests.support.waiting import eventually
from yarl import URL

from evener.proto.reasons import CallFailure
from evener.runtime.byte_budget import ByteBudget
from evener.sandbox_runner.http_server import MAX_HEADERS_BYTES
from evener.sandbox_runner.request_body import BODY_THREADS, PARSED_AT_ONCE_BYTES, read_body

KEY = {"authorization": f"Bearer {NONCE}"}
PART_BYTES = 1 << 14
LARGE = 8 * PARSED_AT_ONCE_BYTES
SECONDS = 30.0
BODY_BYTES = 1 << 20
CHUNKED = "transfer-encoding: chunked"
DECLARED = f"content-length: {BODY_BYTES}"


@pytest.fixture
async def gateway() -> AsyncIterator[FramesGateway]:
    async with frames_gateway() as opened:
        yield opened


def body_of(length: int) -> bytes:
    return msgspec.json.encode({**BODY, "messages": [{"role": "user", "content": "x" * length}]})


async def in_parts(body: bytes) -> AsyncIterator[bytes]:
    """Yield a body so that its client does not know its length, and sends it in chunks."""
    for start in range(0, len(body), PART_BYTES):
        yield body[start : start + PART_BYTES]


@pytest.mark.parametrize("length", [10, LARGE])
async def test_body_of_unknown_length_is_passed_on_with_its_length(gateway: FramesGateway, length: int) -> None:
    """The gateway reads no body without it, because it could not tell how much memory the body needs."""
    body = body_of(length)
    async with harness(gateway, body_bytes=len(body)) as agent:
        url = f"{agent.url}/v1/chat/completions"
        async with agent.http.post(url, data=in_parts(body), headers=KEY) as answer:
            assert answer.status == 200
        async with agent.http.post(url, data=in_parts(body + b" "), headers=KEY) as answer:
            assert answer.status == 413
    [seen] = gateway.seen
    assert msgspec.json.encode(seen.body) == body
    assert seen.headers["content-length"] == str(len(body))


@pytest.mark.parametrize("stream", [False, True])
async def test_client_that_waits_to_be_told_sends_its_body_then(gateway: FramesGateway, *, stream: bool) -> None:
    """curl asks so for large bodies, and some clients wait for ever."""
    body = msgspec.json.encode({**BODY, "stream": stream})
    async with harness(gateway) as agent:
        told, response = await post_when_told(agent.url, "/v1/chat/completions", KEY, body)
    assert told
    assert response.startswith(b"HTTP/1.1 200 OK")
    [seen] = gateway.seen
    assert msgspec.json.encode(seen.body) == body
    assert "expect" not in seen.headers


@pytest.mark.parametrize(
    ("headers", "status"), [({"authorization": "Bearer other"}, 401), ({**KEY, "content-encoding": "br"}, 400)], ids=["key", "encoding"]
)
async def test_body_of_a_request_that_is_refused_by_its_head_is_not_asked_for(
    gateway: FramesGateway, headers: dict[str, str], status: int
) -> None:
    """That is what its client waits for."""
    async with harness(gateway) as agent:
        told, response = await post_when_told(agent.url, "/v1/chat/completions", headers, body_of(10))
    assert not told
    assert response.startswith(b"HTTP/1.1 %d " % status)
    assert gateway.seen == []


async def test_loop_continues_while_a_large_body_is_joined() -> None:
    """Other harnesses of the machine do not wait for it."""

    limits = msgspec.structs.replace(LIMITS, body_bytes=LARGE)

    async def hold(_size: int) -> None:
        """There is room."""

    async def handle(request: web.Request) -> web.Response:
        return web.Response(text=str(len(await read_body(request, limits, hold))))

    application, go = web.Application(), threading.Event()
    application.router.add_post("/", handle)
    async with TestServer(application) as server, aiohttp.ClientSession(server.make_url("/")) as http:

        async def length_read(length: int) -> str:
            async with http.post("/", data=bytes(length)) as answer:
                return await answer.text()

        busy = [BODY_THREADS.begin(go.wait) for _ in range(2)]
        large = asyncio.create_task(length_read(LARGE))
        assert [await length_read(PARSED_AT_ONCE_BYTES) for _ in range(50)] == [str(PARSED_AT_ONCE_BYTES)] * 50
        assert not large.done()
        go.set()
        assert await large == str(LARGE)
        await asyncio.gather(*busy)


@asynccontextmanager
async def begun(
    url: str, length: str, said: bytes = b"", key: str = NONCE
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Send a call whose body has begun, and stay."""
    at = URL(url)
    reader, writer = await asyncio.open_connection(at.host, at.port)
    try:
        first = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n{length}\r\n\r\n"
        writer.write(first.encode() + said)
        await writer.drain()
        yield reader, writer
    finally:
        writer.close()


@pytest.mark.parametrize(("length", "said"), [(DECLARED, b""), (CHUNKED, b"%x\r\n%b\r\n" % (BODY_BYTES - 1, b"x" * (BODY_BYTES - 1)))])
async def test_bodies_that_do_not_come_hinder_no_other_session(gateway: FramesGateway, length: str, said: bytes) -> None:
    """Eight such requests took all room of a runner, for as long as their agent wanted."""
    bodies = ByteBudget(8 * BODY_BYTES, shares=4)
    async with (
        harness(gateway, bodies=bodies, body_bytes=BODY_BYTES) as idle,
        harness(gateway, bodies=bodies, body_bytes=BODY_BYTES, admission_seconds=1.0) as other,
        AsyncExitStack() as stack,
    ):
        for _ in range(10):
            await stack.enter_async_context(begun(idle.url, length, said))
        await idle.clock_stands()
        async with asyncio.timeout(SECONDS):
            assert [await other.text() for _ in range(3)] == ["hello"] * 3
        async with other.http.post(f"{other.url}/v1/chat/completions", data=in_parts(body_of(BODY_BYTES // 2)), headers=KEY) as answer:
            assert answer.status == 200
        assert other.report.failures == ()


@pytest.mark.parametrize("length", [DECLARED, CHUNKED])
@pytest.mark.parametrize("drips", [False, True])
async def test_body_that_does_not_come_in_time_is_refused_as_its_harnesss(gateway: FramesGateway, length: str, *, drips: bool) -> None:
    """Whether it stops or goes on byte by byte. What it held is free."""
    bodies = ByteBudget(BODY_BYTES)
    async with (
        harness(gateway, bodies=bodies, body_bytes=BODY_BYTES, body_seconds=0.5) as agent,
        begun(agent.url, length) as (reader, writer),
        asyncio.timeout(SECONDS),
    ):
        answering = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))
        while drips and not answering.done():
            writer.write(b"1\r\n{\r\n" if length == CHUNKED else b"{")
            await asyncio.wait([answering], timeout=0.05)
        assert (await answering).startswith(b"HTTP/1.1 408 ")
        [failures] = agent.report.failures
        assert (failures.reason, agent.report.unanswered) == (CallFailure.MALFORMED, None)
        assert await agent.text() == "hello"
        await bodies.share().take(BODY_BYTES)


def _trailers(count: int, length: int) -> bytes:
    return b"0\r\n" + b"".join(b"t%d: %b\r\n" % (number, b"x" * length) for number in range(count))


@pytest.mark.parametrize(
    "rest",
    [
        b"zz\r\n",
        b"5\r\nhelloXX\r\n",
        b"ffffffffffffffffffff\r\n",
        _trailers(600, 1),
        b"0\r\nno trailer\r\n\r\n",
        _trailers(1, 70_000),
        _trailers(20, 60_000),
        b"5;" + b"x" * (2 * MAX_HEADERS_BYTES),
    ],
    ids=["rubbish", "too long a chunk", "a length", "many trailers", "a bad trailer", "a long trailer", "long trailers", "an extension"],
)
async def test_body_that_turns_bad_is_answered_and_its_connection_closed(gateway: FramesGateway, rest: bytes) -> None:
    """The parser reports the fault behind the request, whose body would never end. Its room was held until the client left."""
    bodies = ByteBudget(BODY_BYTES)
    async with (
        harness(gateway, bodies=bodies, body_bytes=BODY_BYTES) as agent,
        begun(agent.url, CHUNKED, b"5\r\nhello\r\n") as (reader, writer),
        asyncio.timeout(SECONDS),
    ):
        await turns()
        said = b""
        with suppress(ConnectionError):
            writer.write(rest)
            await writer.drain()
            said = await reader.read()
        if len(rest) < MAX_HEADERS_BYTES:  # or the connection is reset while more is sent, which may take the answer with it
            assert said.startswith(b"HTTP/1.1 400 ")
            assert said.count(b"HTTP/1.1 ") == 1
        await eventually(lambda: agent.report.failures)
        [failures] = agent.report.failures
        assert (failures.reason, failures.count) == (CallFailure.MALFORMED, 1)
        await bodies.share().take(BODY_BYTES)
        assert await agent.text() == "hello"
    assert len(gateway.seen) == 1


async def test_body_that_turns_bad_after_its_request_was_answered_closes_the_connection(gateway: FramesGateway) -> None:
    """Nobody reads it any more."""
    async with (
        harness(gateway) as agent,
        begun(agent.url, CHUNKED, b"5\r\nhello\r\n", key="other") as (reader, writer),
        asyncio.timeout(SECONDS),
    ):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 401 ")
        writer.write(b"zz\r\n")
        assert b"HTTP/1.1" not in await reader.read()


async def test_trailers_of_a_body_are_passed_over(gateway: FramesGateway) -> None:
    """They are part of HTTP, and nothing of a call."""
    body = msgspec.json.encode(BODY)
    async with harness(gateway) as agent, begun(agent.url, CHUNKED, b"%x\r\n%b\r\n" % (len(body), body)) as (reader, writer):
        await turns()
        writer.write(_trailers(20, 1000) + b"\r\n")
        async with asyncio.timeout(SECONDS):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
