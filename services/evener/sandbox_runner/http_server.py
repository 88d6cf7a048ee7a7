"""The HTTP server of one relay. It reports requests that its parser refuses to the relay, which does not blame the harness for them."""

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMethod

MAX_LINE_BYTES: Final = 64 << 10
"""The longest header, and the longest address: longer than those that providers take."""
OPTIONS: Final[dict[str, Any]] = {
    "access_log": None,
    "auto_decompress": False,  # a body that cannot be decoded is refused in the dialect
    "max_line_size": MAX_LINE_BYTES,
    "max_field_size": MAX_LINE_BYTES,
    "max_headers": 512,
}

Respond = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Refuse = Callable[[HTTPStatus, str], web.StreamResponse]


class HttpServer(web.Server):
    """Serves `answer`. `refuse` makes the response to a request that cannot be parsed, and to one whose answer raised."""

    def __init__(self, answer: Respond, refuse: Refuse) -> None:
        super().__init__(answer, handler_cancellation=True)
        self._refuse = refuse

    def __call__(self) -> web.RequestHandler:
        """Return the handler of a new connection."""
        return _Connection(self, self._refuse)


class _Connection(web.RequestHandler):
    def __init__(self, server: HttpServer, refuse: Refuse) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **OPTIONS)
        self._refuse = refuse

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Log the error and return the response. Raises ConnectionError if a part of another one was sent."""
        if isinstance(exc, BadHttpMethod):  # not HTTP, so it belongs to no request
            return super().handle_error(request, status, exc, message)
        response = self._refuse(HTTPStatus(status), message or repr(exc))
        response.force_close()
        super().handle_error(request, status, exc, message)
        return response
