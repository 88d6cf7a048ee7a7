"""`python -m proofs.conformance.host up ...`: `evener up` with what conformance needs beside it.

- A session whose id begins with `refused` or `overloaded` reaches its relay through a proxy on loopback, which notes each refusal that
  the harness is told with Retry-After. For `refused` it answers the second request itself with 429 and the fourth with 503, in the
  dialect's own shape; everything else it passes on.
- The processes of a session whose id begins with `quiet` are watched: see `traffic`.
- SIGUSR1 ends the gateway's task, as a crash of it would, and its supervisor starts it again.

Nothing else differs from `evener up`.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import aiohttp
import structlog
from aiohttp import web
from proofs.conformance.traffic import watched

from evener.cli.__main__ import main
from evener.dialects.canonical import RequestError
from evener.dialects.registry import dialect_for
from evener.runtime import faults
from evener.sandbox_runner import sessions
from evener.sandbox_runner.relay import KEY_IN_PATH, Opening, open_relay
from evener.sandboxes import processes

REFUSALS: Final[Mapping[str, Mapping[int, tuple[int, str]]]] = {
    "refused": {2: (429, "rate_limit_error"), 4: (503, "overloaded_error")},
    "overloaded": {},
}
"""Which requests are refused, by the beginning of the session's id: the request's number, from 1, to status and kind of the refusal."""
WATCHED: Final = "quiet"
RETRY_AFTER: Final = "retry-after"
RETRY_AFTER_SECONDS: Final = 1
BODY_BYTES: Final = 32 * 1024 * 1024
HOP: Final = frozenset({"connection", "content-length", "host", "transfer-encoding"})
"""Headers of a connection."""
PIECE_BYTES: Final = 2**16

log = structlog.get_logger()


class Proxy:
    """Between one harness and its relay."""

    def __init__(self, relay: str, http: aiohttp.ClientSession, session_id: str, refusals: Mapping[int, tuple[int, str]]) -> None:
        self._relay = relay
        self._http = http
        self._session_id = session_id
        self._refusals = refusals
        self._requests = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Refuse the requests whose turn it is; pass the others on."""
        dialect = dialect_for(KEY_IN_PATH.sub("", request.path_qs)) if request.method == "POST" else None
        if dialect is None:
            return await self._pass_on(request)
        self._requests += 1
        if (refusal := self._refusals.get(self._requests)) is None:
            return await self._pass_on(request)
        status, kind = refusal
        error = dialect.error(RequestError("try again later", status=status, kind=kind))
        headers = {RETRY_AFTER: str(RETRY_AFTER_SECONDS)}
        self._note(status, headers)
        return web.Response(status=status, body=error, content_type="application/json", headers=headers)

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        headers = [(name, value) for name, value in request.headers.items() if name.lower() not in HOP]
        body = await request.read()
        async with self._http.request(request.method, self._relay + request.path_qs, headers=headers, data=body) as answer:
            self._note(answer.status, answer.headers)
            kept = [(name, value) for name, value in answer.headers.items() if name.lower() not in HOP]
            passed = web.StreamResponse(status=answer.status, headers=dict(kept))
            await passed.prepare(request)
            async for piece in answer.content.iter_chunked(PIECE_BYTES):
                await passed.write(piece)
            await passed.write_eof()
            return passed

    def _note(self, status: int, headers: Mapping[str, str]) -> None:
        if status >= HTTPStatus.BAD_REQUEST and RETRY_AFTER in headers:
            log.info("refused", session_id=self._session_id, status=status)


@asynccontextmanager
async def proxied(opening: Opening, *given: Any, **named: Any) -> AsyncIterator[str]:
    """Open the relay; yield its own URL, or that of a proxy before it."""
    refusals = next((refusals for prefix, refusals in REFUSALS.items() if opening.session_id.startswith(prefix)), None)
    async with open_relay(opening, *given, **named) as relay:
        if refusals is None:
            yield relay
            return
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as http:
            application = web.Application(client_max_size=BODY_BYTES)
            application.router.add_route("*", "/{path:.*}", Proxy(relay, http, opening.session_id, refusals).handle)
            runner = web.AppRunner(application, handler_cancellation=True, access_log=None, shutdown_timeout=0.2)
            try:
                await runner.setup()
                site = web.TCPSite(runner, "127.0.0.1", 0)
                await site.start()
                yield f"http://127.0.0.1:{runner.addresses[0][1]}"
            finally:
                await runner.cleanup()


async def start(argv: Sequence[str], *, marker: str, **named: Any) -> processes.LocalProcess:
    """Start a program of a sandbox, under watch where its session asks for it."""
    named["marker"] = marker
    return await started(watched(argv, marker) if Path(marker).name.startswith(WATCHED) else argv, **named)


def running(service: str, task: asyncio.Future[None]) -> None:
    """Let SIGUSR1 end the gateway's task from now on."""
    known(service, task)
    if service.endswith("gateway"):
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, task.cancel)


started: Final = processes.start
known: Final = faults.running

if __name__ == "__main__":
    with (
        patch.object(sessions, "open_relay", proxied),
        patch.object(processes, "start", start),
        patch.object(faults, "running", running),
    ):
        main()
