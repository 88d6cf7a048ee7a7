"""The HTTP listener of a process: one port with the routes of all its services, which may come and go."""

import asyncio
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus
from typing import Final

import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from evener.proto.errors import ConfigError, EvenerError, Recoverable
from evener.service.bounded_heads import BoundedHeads
from evener.service.config import ServiceConfig
from evener.service.http import error_response
from evener.service.loopback import is_loopback

GRACE_SECONDS: Final = 2
"""How long open streams may continue at the end of a stop. Then they are cancelled, and their `finally` runs."""
KEEP_ALIVE_SECONDS: Final = 75
BACKLOG: Final = 2048

log = structlog.get_logger()


class PortInUse(EvenerError):
    """Stop the program that listens there, or choose another port with --port (0: any free one)."""


class Mounts:
    """The ASGI application with the routes of the open services. While a service is missing, unknown paths answer 503 instead of 404."""

    def __init__(self) -> None:
        self.missing: tuple[str, ...] = ("all services",)
        """The services that are not open, with the reason if there is one."""
        self.replace(())

    def replace(self, routes: Sequence[BaseRoute]) -> None:
        """Serve these routes from now on. Requests in progress keep theirs."""
        handlers = {HTTPException: self._http_error, EvenerError: _evener_error}
        self._app = Starlette(routes=list(routes), exception_handlers=handlers)  # type: ignore[arg-type]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    async def _http_error(self, request: Request, error: HTTPException) -> Response:
        if error.status_code == HTTPStatus.NOT_FOUND and self.missing:
            return error_response(503, f"not open now: {', '.join(self.missing)}", headers={"retry-after": "1"})
        return error_response(error.status_code, f"{error.detail}: {request.method} {request.url.path}")


async def _evener_error(request: Request, error: EvenerError) -> Response:
    """Answer an error that a handler did not catch, with 503 if trying again can help."""
    log.warning("request_failed", path=request.url.path, error=str(error))
    return error_response(503 if isinstance(error, Recoverable) else 500, str(error))


class Server(uvicorn.Server):
    """Uvicorn without its signal handlers: the host has its own."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def begin(self, listening: socket.socket) -> None:
        """Serve in a task of its own."""
        self._serving = asyncio.create_task(self.serve(sockets=[listening]), name="http")

    async def stop(self) -> None:
        """Take no more requests. Open ones have GRACE_SECONDS."""
        self.should_exit = True
        await asyncio.wait({self._serving})


def bind(config: ServiceConfig) -> socket.socket:
    """Return a listening socket. Raises PortInUse, and ConfigError for an address that is foreign, or unsafe without a token."""
    if config.operator_token is None and config.principals_file is None and not is_loopback(config.host):
        msg = f"host {config.host} can be reached from other machines, and no operator_token or principals_file was given"
        raise ConfigError(msg)
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        return socket.create_server((config.host, config.port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as cause:
        if isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE:
            msg = f"port {config.port} of {config.host} is in use"
            raise PortInUse(msg) from None
        msg = f"cannot listen on {config.host} port {config.port}: {cause}"
        raise ConfigError(msg) from cause


def address_of(config: ServiceConfig, listening: socket.socket) -> str:
    """Return the base URL under which others reach the socket."""
    if config.address:
        return config.address.rstrip("/")
    host = config.host if config.host not in {"0.0.0.0", "::"} else socket.gethostname()  # noqa: S104
    scheme = "http" if config.tls_certificate_file is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"


@asynccontextmanager
async def listen(mounts: Mounts, listening: socket.socket, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    """Serve HTTP inside this block, over TLS if there is a context for it."""
    settings = uvicorn.Config(
        mounts,
        http=BoundedHeads,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
        ssl_context_factory=None if tls is None else lambda *_: tls,
    )
    server = Server(settings)
    server.begin(listening)
    try:
        yield server
    finally:
        await server.stop()
