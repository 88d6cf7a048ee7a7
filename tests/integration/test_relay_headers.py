"""Headers of harnesses at the relay: many long ones, and those that never end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import msgspec
import pytest
from tests.integration.test_relay import BODY, NONCE, harness
from tests.support.frames_gateway import FramesGateway, frames_gateway
from yarl import URL

from evener.dialects.registry import DIALECTS
from evener.proto.reasons import CallFailure
from evener.sandbox_runner.http_server import MAX_HEADERS_BYTES, RELAY_CONNECTIONS

LONG = 60_000
SECONDS = 30.0
PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1beta/models/policy:generateContent")
ALLOWED = MAX_HEADERS_BYTES // LONG


@pytest.fixture
async def gateway() -> AsyncIterator[FramesGateway]:
    async with frames_gateway() as opened:
        yield opened


async def answered(url: str, path: str, headers: int, *, ends: bool = True) -> bytes:
    """Send a call with so many long headers; return everything that comes back. `ends`: whether the headers end."""
    at = URL(url)
    reader, writer = await asyncio.open_connection(at.host, at.port)
    try:
        body = msgspec.json.encode(BODY)
        writer.write(f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {NONCE}\r\ncontent-length: {len(body)}\r\n".encode())
        for number in range(headers):
            writer.write(f"x-{number}: {'y' * LONG}\r\n".encode())
            await writer.drain()
        if ends:
            writer.write(b"connection: close\r\n\r\n" + body)
        async with asyncio.timeout(SECONDS):
            return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("ends", [True, False])
async def test_headers_that_are_too_long_together_are_refused_in_the_dialect(gateway: FramesGateway, path: str, *, ends: bool) -> None:
    """Each is short enough, and the sum would stand in memory beside all bodies that are counted."""
    async with harness(gateway) as agent:
        said = await answered(agent.url, path, ALLOWED + 1 if ends else 4 * ALLOWED, ends=ends)
        assert await agent.text()
    dialect = next(dialect for dialect in DIALECTS if dialect.serves(path))
    head, _, body = said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 ")
    told = msgspec.json.decode(body)["error"]
    assert f"longer than {MAX_HEADERS_BYTES} bytes together" in told["message"]
    assert ("status" in told) is (dialect.name == "google_generate")
    assert len(gateway.seen) == 1
    [failures] = agent.report.failures
    assert (failures.reason, failures.count) == (CallFailure.REFUSED, 1)


async def test_headers_up_to_the_limit_are_passed_on_as_they_are(gateway: FramesGateway) -> None:
    """Among them some that a gateway would never see from providers' own clients."""
    async with harness(gateway) as agent:
        headers = {"authorization": f"Bearer {NONCE}", **{f"x-{number}": "y" * 8000 for number in range(20)}}
        async with agent.post(headers=headers) as response:
            assert response.status == 200
    assert gateway.seen[0].headers["x-19"] == "y" * 8000


async def test_long_bodies_in_many_pieces_are_not_taken_for_headers(gateway: FramesGateway) -> None:
    """Nor is the next request on the same connection."""
    long = {"model": "policy", "messages": [{"role": "user", "content": "x" * (3 * MAX_HEADERS_BYTES)}]}
    async with harness(gateway, body_bytes=8 * MAX_HEADERS_BYTES) as agent:
        for _ in range(3):
            async with agent.post(long) as response:
                assert response.status == 200


async def test_connections_that_say_nothing_are_limited_and_hinder_no_other_session(gateway: FramesGateway) -> None:
    """They used up the descriptors of the runner, which ended the other sessions."""
    async with harness(gateway) as idle, harness(gateway) as other, AsyncExitStack() as stack:
        at = URL(idle.url)
        for _ in range(RELAY_CONNECTIONS):
            _, writer = await asyncio.open_connection(at.host, at.port)
            stack.callback(writer.close)
        async with asyncio.timeout(SECONDS):
            async with idle.post() as response:
                assert (response.status, f"{RELAY_CONNECTIONS} connections" in await response.text()) == (503, True)
            assert await other.text() == "hello"
        [failures] = idle.report.failures
        assert failures.reason is CallFailure.REFUSED
        writer.close()
        async with asyncio.timeout(SECONDS):
            while True:
                async with idle.post() as response:
                    if response.status == 200:
                        break
