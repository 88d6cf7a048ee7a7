"""A wire between a gateway and an engine that a test can hold still or break: the engine's host is frozen, or its answer is lost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Wire:
    """Forwards bytes, as long as the test lets it."""

    def __init__(self) -> None:
        self.url = ""
        self.breaks_at: bytes | None = None
        """A request with this text in it breaks its connection."""
        self._moving = asyncio.Event()
        self._moving.set()

    def freeze(self) -> None:
        """Let nothing through. Connections stay open, and new ones are accepted."""
        self._moving.clear()

    def thaw(self) -> None:
        """Let everything through again."""
        self._moving.set()

    async def serve(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connect a client to the engine until one of them is gone."""
        there, here = await asyncio.open_connection("127.0.0.1", port)
        pumps = [asyncio.create_task(self._pump(reader, here)), asyncio.create_task(self._pump(there, writer))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            writer.close()
            here.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            await self._moving.wait()
            if self.breaks_at is not None and self.breaks_at in data:
                return
            writer.write(data)


@asynccontextmanager
async def wire_to(url: str) -> AsyncIterator[Wire]:
    """Listen on loopback before an engine at a URL."""
    wire, port = Wire(), int(url.rpartition(":")[2])
    clients: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        clients.add(task := asyncio.create_task(wire.serve(port, reader, writer)))
        task.add_done_callback(clients.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    wire.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield wire
    finally:
        server.close()
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
