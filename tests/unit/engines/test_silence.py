"""Silence of an engine: none is too long while it samples; whether it is well is asked beside that."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest
from aiohttp import web
from tests.support.loop import forever

from evener.engines.connection import EngineHttp, kept_alive
from evener.engines.port import EngineUnreachable

SILENCE_SECONDS = 0.5


async def nothing() -> bytes:
    """Return the body of a request that says nothing."""
    return b"{}"


@asynccontextmanager
async def slow(health: int | None = 200) -> AsyncIterator[EngineHttp]:
    """A client, patient for a fifth of the silence, of a server that lets it wait. `health`: its status; None: it does not say."""

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for part in (b"data: 1\n\n", b"data: 2\n\n"):
            await response.write(part)
            await asyncio.sleep(SILENCE_SECONDS)
        return response

    async def whole(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(SILENCE_SECONDS)
        return web.json_response([])

    async def well(_: web.Request) -> web.StreamResponse:
        if health is None:
            await forever()
        return web.Response(status=health or 200)

    application = web.Application()
    application.router.add_post("/stream", stream)
    application.router.add_route("*", "/whole", whole)
    application.router.add_get("/health", well)
    runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    http = EngineHttp(f"http://127.0.0.1:{runner.addresses[0][1]}", silence_seconds=SILENCE_SECONDS / 5)
    try:
        yield http
    finally:
        await http.aclose()
        await runner.cleanup()


async def test_sampling_may_be_silent_for_as_long_as_it_takes() -> None:
    """A long prompt on a slow engine: streamed, and not."""
    async with slow() as http:
        async with aclosing(http.events("/stream", nothing)) as batches:
            assert [data async for batch in batches for data in batch] == [b"1", b"2"]
        assert await http.post("/whole", {}, samples=True) == []


async def test_what_is_no_sampling_has_a_limit() -> None:
    async with slow() as http:
        with pytest.raises(EngineUnreachable, match=r"GET .*/whole"):
            await http.get("/whole")
        with pytest.raises(EngineUnreachable, match=r"POST .*/whole"):
            await http.post("/whole", {})


@pytest.mark.parametrize("health", [200, 404])
async def test_an_engine_that_answers_is_well(health: int) -> None:
    """Servers of others may have no such path."""
    async with slow(health) as http:
        await http.health()


@pytest.mark.parametrize("health", [500, 503])
async def test_an_engine_that_says_it_is_dead_is_not_well(health: int) -> None:
    async with slow(health) as http:
        with pytest.raises(EngineUnreachable, match=f"answered {health}"):
            await http.health()


async def test_an_engine_that_does_not_say_is_not_well() -> None:
    """Its process is frozen: the kernel still accepts connections."""
    async with slow(None) as http:
        with pytest.raises(EngineUnreachable, match="no answer in"):
            await http.health(0.2)


async def test_an_engine_whose_connections_were_closed_is_unreachable() -> None:
    """It left between a call's admission and its sampling."""
    async with slow() as http:
        await http.health()
        await http.aclose()
        with pytest.raises(EngineUnreachable, match="were closed"):
            await http.get("/whole")


async def test_connections_are_watched_by_the_kernel() -> None:
    """A host that lost its power sends nothing any more, and nobody else would notice."""
    async with slow() as http, http._request("POST", "/stream", b"{}", None) as response:
        assert response.connection is not None
        assert response.connection.transport is not None
        opened = response.connection.transport.get_extra_info("socket")
        assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    with kept_alive((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 1))) as one:
        if hasattr(socket, "TCP_KEEPIDLE"):
            assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
