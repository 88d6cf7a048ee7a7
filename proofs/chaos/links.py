"""Connections between two parts that can be cut, silenced and slowed: a proxy for TCP on loopback."""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from pathlib import Path
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
    """Nothing passes, and neither side is told, as if a cable was pulled."""
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
        self._refused: int | None = None
        """The process whose connections are cut. None: nobody's."""
        self._ends: dict[StreamWriter, StreamWriter] = {}
        """The far end of each connection, by its near end."""
        self._connections: set[asyncio.Task[None]] = set()

    def become(self, state: State) -> None:
        """Change what becomes of bytes, also on connections that are open."""
        self._state = state
        if state is State.SILENT:
            self._passes.clear()
        else:
            self._passes.set()
        if state is State.CUT:
            _abort_all(self._ends)

    def refuse(self, pid: int | None) -> None:
        """Cut the link for one process, and for nobody else; None: it is open for everybody."""
        self._refused = pid
        _abort_all({near: far for near, far in self._ends.items() if self._refuses(near)})

    def connected(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Serve one more connection, until either side ends it."""
        serving = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(serving)
        serving.add_done_callback(self._connections.discard)

    async def ended(self) -> None:
        """Wait until all connections have ended."""
        await asyncio.gather(*self._connections)

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        if self._state is State.CUT or self._refuses(writer):
            await _abort(writer)
            return
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            await _abort(writer)
            return
        self._ends[writer] = far_writer
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(reader, far_writer))
                group.create_task(self._pass_on(far_reader, writer))
        finally:
            del self._ends[writer]
            await asyncio.gather(_abort(writer), _abort(far_writer))

    def _refuses(self, near: StreamWriter) -> bool:
        peer = near.get_extra_info("peername")
        return self._refused is not None and peer is not None and peer[1] in _ports_of(self._refused)

    async def _pass_on(self, reader: StreamReader, writer: StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                if self._state is State.SLOW:
                    await asyncio.sleep(SLOW_SECONDS)
                await self._passes.wait()
                writer.write(data)
                await writer.drain()
            writer.write_eof()


def _abort_all(ends: Mapping[StreamWriter, StreamWriter]) -> None:
    for writer in (*ends, *ends.values()):
        writer.transport.abort()


def _ports_of(pid: int) -> set[int]:
    """Return the TCP ports of a process, none once it has ended."""
    sockets = set[str]()
    with suppress(FileNotFoundError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                sockets.add(str(descriptor.readlink()))
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return {int(row[1].rpartition(":")[2], 16) for row in rows if f"socket:[{row[9]}]" in sockets}


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
