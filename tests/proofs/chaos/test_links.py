"""The proxy treats a connection as it is set to."""

import asyncio
import os
import subprocess
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from proofs.chaos.links import SLOW_SECONDS, Link, State, link

SECONDS = 60.0


@pytest.fixture
async def echo() -> AsyncIterator[Link]:
    """A link to a server that says what it hears."""
    serving: set[asyncio.Task[None]] = set()

    async def answer(reader: StreamReader, writer: StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(100):
                writer.write(data)
        await close(writer)

    def connected(reader: StreamReader, writer: StreamWriter) -> None:
        serving.add(asyncio.create_task(answer(reader, writer)))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with link(server.sockets[0].getsockname()[1]) as made:
        yield made
    server.close()
    await asyncio.gather(*serving)


@asynccontextmanager
async def talk(port: int) -> AsyncIterator[tuple[StreamReader, StreamWriter]]:
    """Yield a connection that is closed at the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        await close(writer)


async def close(writer: StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def said(reader: StreamReader, writer: StreamWriter, text: bytes) -> bytes:
    writer.write(text)
    async with asyncio.timeout(SECONDS):
        return await reader.read(100)


async def test_open_link_passes_everything_on_and_ends_with_its_ends(echo: Link) -> None:
    async with talk(echo.port) as (reader, writer):
        assert await said(reader, writer, b"one") == b"one"
        writer.write_eof()
        async with asyncio.timeout(SECONDS):
            assert await reader.read() == b""


async def test_slow_link_delays_in_both_directions(echo: Link) -> None:
    async with talk(echo.port) as (reader, writer):
        echo.become(State.SLOW)
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await said(reader, writer, b"one") == b"one"
        assert loop.time() - began >= 2 * SLOW_SECONDS


async def test_silent_link_holds_what_was_said_until_it_opens(echo: Link) -> None:
    async with talk(echo.port) as (reader, writer):
        assert await said(reader, writer, b"one") == b"one"
        echo.become(State.SILENT)
        hearing = asyncio.create_task(said(reader, writer, b"two"))
        await asyncio.sleep(0.1)  # nothing tells that nothing comes
        assert not hearing.done()
        echo.become(State.OPEN)
        assert await hearing == b"two"


async def test_cut_link_breaks_connections_and_refuses_new_ones(echo: Link) -> None:
    async with talk(echo.port) as (reader, writer):
        assert await said(reader, writer, b"one") == b"one"
        echo.become(State.CUT)
        with pytest.raises(ConnectionError):
            await said(reader, writer, b"two")
    async with talk(echo.port) as (reader, writer):
        with pytest.raises(ConnectionError):
            await said(reader, writer, b"three")
    echo.become(State.OPEN)
    async with talk(echo.port) as (reader, writer):
        assert await said(reader, writer, b"four") == b"four"


async def test_link_that_refuses_a_process_cuts_its_connections_and_those_of_nobody_else(echo: Link) -> None:
    """This process is refused: what another one sends goes through."""
    ask = f"import socket; s = socket.create_connection(('127.0.0.1', {echo.port})); s.send(b'one'); print(s.recv(3).decode())"
    async with talk(echo.port) as (reader, writer):
        assert await said(reader, writer, b"one") == b"one"
        echo.refuse(os.getpid())
        with pytest.raises(ConnectionError):
            await said(reader, writer, b"two")
    async with talk(echo.port) as (reader, writer):
        with pytest.raises(ConnectionError):
            await said(reader, writer, b"three")
    other = await asyncio.create_subprocess_exec(sys.executable, "-c", ask, stdout=subprocess.PIPE)
    assert (await other.communicate())[0] == b"one\n"
    echo.refuse(None)
    async with talk(echo.port) as (reader, writer):
        assert await said(reader, writer, b"four") == b"four"
