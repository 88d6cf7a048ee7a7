"""The proxy does to a connection what it says."""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator

import pytest
from proofs.chaos.links import SLOW_SECONDS, Link, State, link

SECONDS = 60.0


@pytest.fixture
async def echo() -> AsyncIterator[Link]:
    """A link to a server that says what it hears."""

    async def answer(reader: StreamReader, writer: StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with link(server.sockets[0].getsockname()[1]) as made:
        yield made
    server.close()


async def said(reader: StreamReader, writer: StreamWriter, text: bytes) -> bytes:
    writer.write(text)
    async with asyncio.timeout(SECONDS):
        return await reader.read(100)


async def test_open_link_passes_everything_on_and_ends_with_its_ends(echo: Link) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", echo.port)
    assert await said(reader, writer, b"one") == b"one"
    writer.write_eof()
    async with asyncio.timeout(SECONDS):
        assert await reader.read() == b""
    writer.close()


async def test_slow_link_delays_in_both_directions(echo: Link) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", echo.port)
    echo.become(State.SLOW)
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert await said(reader, writer, b"one") == b"one"
    assert loop.time() - began >= 2 * SLOW_SECONDS
    writer.close()


async def test_silent_link_holds_what_was_said_until_it_opens(echo: Link) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", echo.port)
    assert await said(reader, writer, b"one") == b"one"
    echo.become(State.SILENT)
    hearing = asyncio.create_task(said(reader, writer, b"two"))
    await asyncio.sleep(0.1)  # nothing tells that nothing comes
    assert not hearing.done()
    echo.become(State.OPEN)
    assert await hearing == b"two"
    writer.close()


async def test_cut_link_breaks_connections_and_refuses_new_ones(echo: Link) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", echo.port)
    assert await said(reader, writer, b"one") == b"one"
    echo.become(State.CUT)
    with pytest.raises(ConnectionError):
        await said(reader, writer, b"two")
    other, further = await asyncio.open_connection("127.0.0.1", echo.port)
    with pytest.raises(ConnectionError):
        await said(other, further, b"three")
    echo.become(State.OPEN)
    again, anew = await asyncio.open_connection("127.0.0.1", echo.port)
    assert await said(again, anew, b"four") == b"four"
    anew.close()
