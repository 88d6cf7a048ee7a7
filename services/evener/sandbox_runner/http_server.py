"""The HTTP server of one relay. It reports requests that its parser refuses to the relay, which does not blame the harness for them."""

import asyncio
from http import HTTPStatus
from typing import Any, Final, Protocol

from aiohttp import StreamReader, web
from aiohttp.http_exceptions import BadHttpMethod

MAX_LINE_BYTES: Final = 64 << 10
"""The longest header, and the longest address: longer than those that providers take."""
MAX_HEADERS_BYTES: Final = 256 << 10
"""The limit of all headers of a request together. The parser has none."""
LINGER_SECONDS: Final = 2.0
"""How long what is still sent after a refusal is thrown away: a connection that is reset takes the refusal with it."""
RELAY_CONNECTIONS: Final = 512
"""The connections to one relay at a time: more than the sub-agents of a harness have."""
IDLE_SECONDS: Final = 300.0
"""How long a connection may wait for its next request, or for the end of its headers. Clients close theirs after 90 s at the latest."""
BUFFER_BYTES: Final = 64 << 10
"""How much of a body a connection keeps before somebody reads it."""
OPTIONS: Final[dict[str, Any]] = {
    "access_log": None,
    "keepalive_timeout": IDLE_SECONDS,
    "read_bufsize": BUFFER_BYTES,
    "auto_decompress": False,  # a body that cannot be decoded is refused in the dialect
    "max_line_size": MAX_LINE_BYTES,
    "max_field_size": MAX_LINE_BYTES,
    "max_headers": 512,
}

TOO_MUCH: Final = f"the headers are longer than {MAX_HEADERS_BYTES} bytes together; send fewer or shorter ones"

CROWDED: Final = f"this relay has {RELAY_CONNECTIONS} connections; use those, or close some"


class Respond(Protocol):
    """Answers a request."""

    async def __call__(self, request: web.BaseRequest, /) -> web.StreamResponse:
        """Return the response, sent or not."""
        ...


class Refuse(Protocol):
    """Makes the response to a request that is not answered."""

    def __call__(self, status: HTTPStatus, message: str, /, path: str = "") -> web.Response:
        """Return the response. `path`: of the request, if it is known."""
        ...


class HttpServer(web.Server):
    """Serves `answer`. `refuse` makes the response to a request that cannot be parsed, and to one whose answer raised."""

    def __init__(self, answer: Respond, refuse: Refuse) -> None:
        super().__init__(answer, handler_cancellation=True)
        self._refuse = refuse

    def __call__(self) -> asyncio.Protocol:  # type: ignore[override]
        """Return the handler of a new connection."""
        if len(self.connections) < RELAY_CONNECTIONS:
            return _Connection(self, self._refuse)
        return _Crowded(self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, CROWDED))


class _Crowded(asyncio.Protocol):
    """A connection that is refused."""

    def __init__(self, refusal: web.Response) -> None:
        self._refusal = refusal

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.WriteTransport):
            transport.write(_written(self._refusal))
        transport.close()


class BrokenBody(Exception):
    """The rest of a request's body cannot be read; the text says why."""


class _Connection(web.RequestHandler):
    def __init__(self, server: HttpServer, refuse: Refuse) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **OPTIONS)
        self._refuse = refuse
        self._body: StreamReader | None = None
        """The body of the last request whose headers have ended."""
        self._head = bytearray()
        """What has come of a request whose headers have not ended: its beginning, while it is short."""
        self._head_bytes = 0
        self._refused = False

    def data_received(self, data: bytes) -> None:
        """Parse more of the requests. The parser keeps headers until they end, so that those of a request that goes on and on end here."""
        if self._refused:
            return
        body, before = self._open_body(), len(self._messages)
        came = 0 if body is None else body.total_bytes
        super().data_received(data)
        if len(self._messages) > before and body is not None and not body.is_eof():  # only a fault can come before a body's end
            fault, _ = self._messages.pop()
            self._break_body(body, getattr(fault, "message", None) or "")
        elif len(self._messages) > before:
            self._body = self._messages[-1][1]
            self._head_bytes = 0
            self._head.clear()
        elif body is not None and body.total_bytes > came:
            self._head_bytes = 0
        else:
            self._head_bytes += len(data)
            self._look(data, body)

    def _open_body(self) -> StreamReader | None:
        """Return the body that has not ended, if there is one."""
        return None if self._body is None or self._body.is_eof() else self._body

    def _look(self, data: bytes, body: StreamReader | None) -> None:
        """Refuse headers, or what follows the last chunk of a body, if there is too much of them."""
        if body is None:
            self._head += data[: max(0, MAX_LINE_BYTES - len(self._head))]
        if self._head_bytes <= MAX_HEADERS_BYTES:
            return
        if body is None:
            self._break_off()
        else:
            self._break_body(body, TOO_MUCH)

    def _break_body(self, body: StreamReader, fault: str) -> None:
        """End a body that cannot be read on, and after its answer the connection. The parser would never end it."""
        self._refused = True
        if self._messages or self._current_request is not None:
            body.set_exception(BrokenBody(fault))
        body.feed_eof()
        self.close()

    def _break_off(self) -> None:
        """Refuse the request whose headers do not end, if no other is being answered, and close the connection."""
        self._refused = True
        refusal = self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, TOO_MUCH, _path(bytes(self._head)))
        if self.transport is None or self._current_request is not None:
            self.force_close()
            return
        self.transport.write(_written(refusal))
        asyncio.get_running_loop().call_later(LINGER_SECONDS, self.force_close)

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


def headers_bytes(request: web.BaseRequest) -> int:
    """Return the length of a request's headers together."""
    return sum(len(name) + len(value) for name, value in request.raw_headers)


def _written(refusal: web.Response) -> bytes:
    """Return a response as it is sent on a connection that has no request."""
    body = refusal.body if isinstance(refusal.body, bytes) else b""
    said = f"HTTP/1.1 {refusal.status} {refusal.reason}\r\ncontent-type: {refusal.content_type}\r\ncontent-length: {len(body)}\r\n"
    return said.encode() + b"connection: close\r\n\r\n" + body


def _path(head: bytes) -> str:
    """Return the path in the beginning of a request, empty if there is none."""
    words = head.partition(b"\r\n")[0].split(b" ")
    return words[1].decode("latin-1") if len(words) > 1 else ""
