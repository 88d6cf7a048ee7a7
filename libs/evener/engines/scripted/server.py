"""The scripted engine behind a port, inside a running event loop."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import uvicorn
from tokenizers import Tokenizer

from evener.engines.scripted.app import CONTEXT, END_OF_TURN, MODEL, ScriptedApp
from evener.engines.scripted.ledger import Entry
from evener.engines.scripted.script import Script

HOST: Final = "127.0.0.1"
GRACE_SECONDS: Final = 1
"""What open answers get when the engine stops."""


class ScriptedServer:
    """A scripted engine that is serving."""

    def __init__(self, app: ScriptedApp, url: str) -> None:
        self.url: Final = url
        self._app: Final = app

    @property
    def ledger(self) -> list[Entry]:
        """What was fed and sampled, in the order in which the requests ended; without the probes of the check at start."""
        return [entry for entry in self._app.ledger.entries if not entry.probe]

    @property
    def sampling(self) -> int:
        """Requests that are being sampled now."""
        return self._app.ledger.open

    async def recorded(self, count: int, *, seconds: float = 10.0) -> list[Entry]:
        """Wait until the ledger has `count` entries, and return it. Raises TimeoutError."""
        async with asyncio.timeout(seconds):
            await self._app.ledger.until(count)
        return self.ledger

    def play(self, script: Script) -> None:
        """Replace the script; its calls are counted from 1 again."""
        self._app.play(script)

    def publish(self, label: str) -> None:
        """Sample under another version label from the next token on, also in open answers."""
        self._app.version = label


class _Server(uvicorn.Server):
    """Uvicorn without signal handlers: the process belongs to somebody else."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def scripted_engine(
    script: Script,
    tokenizer: Tokenizer,
    *,
    ledger: Path | None = None,
    port: int = 0,
    model: str = MODEL,
    context: int = CONTEXT,
    end_of_turn: str = END_OF_TURN,
) -> AsyncIterator[ScriptedServer]:
    """Serve a scripted engine on loopback until the block ends. Raises OSError if the port is taken, ScriptError."""
    app = ScriptedApp(script, tokenizer, ledger=ledger, model=model, context=context, end_of_turn=end_of_turn)
    options: dict[str, Any] = {"log_config": None, "log_level": "critical", "timeout_graceful_shutdown": GRACE_SECONDS, "lifespan": "off"}
    with _listen(port) as listening:
        server = _Server(uvicorn.Config(app.asgi, **options))
        serving = asyncio.create_task(server.serve(sockets=[listening]), name="scripted engine")
        try:
            yield ScriptedServer(app, f"http://{HOST}:{listening.getsockname()[1]}")
        finally:
            server.should_exit = True
            with suppress(asyncio.CancelledError):
                await asyncio.wait({serving})
            app.ledger.close()


def _listen(port: int) -> socket.socket:
    # asyncio turns Nagle's algorithm off (40 ms an answer otherwise) only where the protocol is named
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((HOST, port))
        listening.listen()
    except BaseException:
        listening.close()
        raise
    return listening
