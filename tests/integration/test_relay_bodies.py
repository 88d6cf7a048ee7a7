"""Bodies of harnesses at the relay: of unknown length, and large ones beside small ones."""

import asyncio
import threading
from collections.abc import AsyncIterator

import aiohttp
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.integration.test_relay import BODY, NONCE, harness
from tests.support.careful_client import post_when_told
from tests.support.frames_gateway import FramesGateway, frames_gateway

from evener.sandbox_runner.request_body import BODY_THREADS, PARSED_AT_ONCE_BYTES, read_body

KEY = {"authorization": f"Bearer {NONCE}"}
PART_BYTES = 1 << 14
LARGE = 8 * PARSED_AT_ONCE_BYTES


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

    async def handle(request: web.Request) -> web.Response:
        return web.Response(text=str(len(await read_body(request, LARGE))))

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
