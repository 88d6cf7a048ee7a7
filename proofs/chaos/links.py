"""Connections between two parts that can be cut, silenced and slowed: a proxy for TCP on loopback."""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from typing import Final

CHUNK_BYTES: Final = 65_536
SLOW_SECONDS: Final = 0.3
"""The delay of each chunk in each direction on a slow link."""


class State(StrEnum):
    """What a link does with bytes."""

    OPEN = "open"
    SLOW = "slow"
    """Each chunk waits."""
    SILENT = "silent"
    """Nothing passes, and nobody is told: a cable that was pulled."""
    CUT = "cut"
    """Connections are closed, and new ones are closed at once."""


class Link:
    """A listener on loopback that passes connections on to another port of it."""

    def __init__(self, target: int) -> None:
        self.port = 0
        self._target = target
        self._state = State.OPEN
        self._passes = asyncio.Event()
        self._passes.set()
        self._writers: set[StreamWriter] = set()
        self._connections: set[asyncio.Task[None]] = set()

    def become(self, state: State) -> None:
        """Change what becomes of bytes, also on connections that are open."""
        self._state = state
        if state is State.SILENT:
            self._passes.clear()
        else:
            self._passes.set()
        if state is State.CUT:
            for writer in self._writers:
                writer.transport.abort()

    def connected(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Serve one more connection, until either side ends it."""
        serving = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(serving)
        serving.add_done_callback(self._connections.discard)

    async def ended(self) -> None:
        """Wait until all connections have ended."""
        await asyncio.gather(*self._connections)

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        if self._state is State.CUT:
            await _abort(writer)
            return
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            await _abort(writer)
            return
        both = {writer, far_writer}
        self._writers |= both
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(reader, far_writer))
                group.create_task(self._pass_on(far_reader, writer))
        finally:
            self._writers -= both
            await asyncio.gather(*map(_abort, both))

    async def _pass_on(self, reader: StreamReader, writer: StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                if self._state is State.SLOW:
                    await asyncio.sleep(SLOW_SECONDS)
                await self._passes.wait()
                writer.write(data)
                await writer.drain()
            writer.write_eof()


async def _abort(writer: StreamWriter) -> None:
    """Break a connection off, and wait until it is gone."""
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()


@asynccontextmanager
async def link(target: int, port: int = 0) -> AsyncIterator[Link]:
    """Yield an open link to a port of loopback. `port`: where it listens; 0: any free one."""
    made = Link(target)
    server = await asyncio.start_server(made.connected, "127.0.0.1", port)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        made.become(State.CUT)
        server.close()
        await server.wait_closed()
        await made.ended()
