"""The parser of the HTTP listener, with a limit of headers. Without it, a request keeps as much memory as it sends headers."""

from typing import Any, Final

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES: Final = 512 << 10
"""The limit of a request's headers together: what a relay lets through, and its own."""
REFUSAL: Final = msgspec.json.encode(
    {"error": {"message": f"the headers are longer than {MAX_HEAD_BYTES} bytes together; send fewer or shorter ones", "field": None}}
)
HEAD_REFUSED: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(REFUSAL), REFUSAL)
)


class BoundedHeads(HttpToolsProtocol):
    """One connection. A request whose headers go on beyond the limit is answered with 431, and the connection closed.

    Trailers, which follow the last chunk of a body, are dropped. The connection is closed if they go on beyond the limit.
    """

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self._came = 0
        """The size of the piece that is being parsed."""
        self._in_head = False
        self._unread_bytes = 0
        """What has come since a request began, or since the last bytes of its body."""

    def data_received(self, data: bytes) -> None:
        """Parse more of the requests."""
        self._came = len(data)
        self._unread_bytes += len(data)
        super().data_received(data)
        if self._unread_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            if self._in_head:
                self.transport.write(HEAD_REFUSED)
            self.transport.close()

    def on_message_begin(self) -> None:
        """Begin a request, somewhere in the piece."""
        super().on_message_begin()
        self._in_head, self._unread_bytes = True, self._came

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header. The base class would take a trailer for one."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin the request's body."""
        self._in_head, self._unread_bytes = False, 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._unread_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        self._unread_bytes = 0
        super().on_message_complete()
