"""Serves the scripted engine on a port, inside a running event loop."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import uvicorn
from tokenizers import Tokenizer

from evener.engines.connection import ENGINE_HOST
from evener.engines.scripted.answer import Speed
from evener.engines.scripted.app import ANSWER_OPENING, END_OF_TURN, MAX_CONTEXT, MODEL_NAME, ScriptedApp
from evener.engines.scripted.endpoints import ScriptedEndpoints
from evener.engines.scripted.ledger import LedgerEntry
from evener.engines.scripted.script import GATE, Script
from evener.templates.jinja import ChatTemplate

OPEN_ANSWER_SECONDS: Final = 1
"""How long open answers may continue when the engine stops."""
HTTP_IDLE_SECONDS: Final = 75
"""Longer than clients keep a connection, so that none is closed just when a call is sent over it."""


class ScriptedServer:
    """A scripted engine that is serving."""

    def __init__(self, app: ScriptedApp, url: str) -> None:
        self.url: Final = url
        self._app: Final = app

    @property
    def ledger(self) -> list[LedgerEntry]:
        """The ids that were fed and sampled, in the order in which the requests ended, without the probes of the check at start."""
        return [entry for entry in self._app.ledger.entries if not entry.probe]

    @property
    def sampling(self) -> int:
        """The number of requests that are being sampled now."""
        return self._app.ledger.open

    async def recorded(self, count: int, *, seconds: float = 60.0) -> list[LedgerEntry]:
        """Wait until the ledger has `count` entries, and return it. Raises TimeoutError."""
        async with asyncio.timeout(seconds):
            await self._app.ledger.until(count)
        return self.ledger

    def play(self, script: Script) -> None:
        """Replace the script, whose calls are counted from 1."""
        self._app.play(script)

    def publish(self, label: str) -> None:
        """Use another version label from the next token on, also in open answers."""
        self._app.control.label = label

    def go(self, gate: str = GATE, times: int | None = 1) -> None:
        """Let this many waits of the script pass a gate. None: all from now on."""
        self._app.control.go(gate, times)

    async def waiting(self, gate: str = GATE, *, count: int = 1, seconds: float = 60.0) -> None:
        """Wait until this many answers wait at a gate. Raises TimeoutError."""
        async with asyncio.timeout(seconds):
            await self._app.control.until(lambda: self._app.control.gates[gate].waiting >= count)


class _Server(uvicorn.Server):
    """Uvicorn without signal handlers, because the process belongs to another program."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def scripted_engine(
    script: Script,
    tokenizer: Tokenizer,
    *,
    template: ChatTemplate | None = None,
    ledger: Path | None = None,
    keep: int | None = None,
    port: int = 0,
    model: str = MODEL_NAME,
    context: int = MAX_CONTEXT,
    end_of_turn: str = END_OF_TURN,
    answer: str = ANSWER_OPENING,
    tokens_per_second: float | None = None,
    block: int = 1,
) -> AsyncIterator[ScriptedServer]:
    """Serve a scripted engine on loopback until the block ends. Raises OSError if the port is taken, ScriptError.

    `template`: of the chat endpoint; None: the bundled `chatml_tools`. `ledger`: file to append entries to. `keep`: how many of the
    newest entries memory holds; None: all. `context`: ids of prompt and answer together. `end_of_turn`: the special token that ends
    what the script says. `answer`: what opens an answer in a prompt. `tokens_per_second` (None: at once) and `block` (tokens in an event
    of a stream) hold where the script does not say.
    """
    app = ScriptedApp(
        script,
        tokenizer,
        template=template,
        ledger=ledger,
        keep=keep,
        model=model,
        context=context,
        end_of_turn=end_of_turn,
        answer=answer,
        speed=Speed(seconds_per_token=1 / tokens_per_second if tokens_per_second else 0.0, block=block),
    )
    options: dict[str, Any] = {
        "log_config": None,
        "log_level": "critical",
        "timeout_graceful_shutdown": OPEN_ANSWER_SECONDS,
        "timeout_keep_alive": HTTP_IDLE_SECONDS,
        "lifespan": "off",
        "ws": "none",
    }
    with _listen(port) as listening:
        server = _Server(uvicorn.Config(ScriptedEndpoints(app), **options))
        serving = asyncio.create_task(server.serve(sockets=[listening]), name="scripted engine")
        try:
            yield ScriptedServer(app, f"http://{ENGINE_HOST}:{listening.getsockname()[1]}")
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
        listening.bind((ENGINE_HOST, port))
        listening.listen()
    except BaseException:
        listening.close()
        raise
    return listening
