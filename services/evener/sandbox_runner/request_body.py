"""The body of a harness's request as its dialect reads it. Errors in the body are answered in the dialect."""

import zlib
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from aiohttp import web

from evener.dialects.canonical import Dialect, RequestError, RequestHints
from evener.dialects.fields import malformed, refuse
from evener.proto.reasons import CallFailure
from evener.runtime.threads import Threads

HEADER: Final = "content-encoding"
PLAIN: Final = ("", "identity")
INFLATED: Final = ("gzip", "deflate")
GZIP_OR_ZLIB: Final = 32 + zlib.MAX_WBITS
"""Tells zlib to find out by the first bytes which of the two formats the body has."""
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
BODY_THREADS: Final = Threads("relay", 2)
"""Bodies are joined, inflated and looked at here."""
PARSED_AT_ONCE_BYTES: Final = 64 << 10
MAX_MEMBERS: Final = 100
"""Compressed bodies one after the other in one: each costs a copy of the rest."""


async def read_body(request: web.BaseRequest, max_bytes: int) -> bytes:
    """Return the body, decoded, of at most so many bytes. Raises RequestError."""
    encoding = request.headers.get(HEADER, "").strip().lower()
    if encoding not in {*PLAIN, *INFLATED}:
        said = encoding.encode(errors="backslashreplace").decode()  # a header may have bytes that are no text
        refuse(HEADER, f"{said} is not served; send the body plain, or as {' or '.join(INFLATED)}")
    if request.headers.get("expect", "").lower() == "100-continue":
        await request.writer.write(CONTINUE)
        request.writer.output_size = 0  # nothing of the response was sent
    parts, size = list[bytes](), 0
    async for part in request.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > max_bytes:
            raise _too_large(max_bytes)
    if encoding in PLAIN and size <= PARSED_AT_ONCE_BYTES:
        return b"".join(parts)
    return await BODY_THREADS.run(_whole, parts, encoding, max_bytes)


async def read_hints(dialect: Dialect, path: str, body: bytes) -> RequestHints:
    """Return the fields of a request that the relay must know. A large body is read in a thread."""
    return dialect.hints(path, body) if len(body) <= PARSED_AT_ONCE_BYTES else await BODY_THREADS.run(dialect.hints, path, body)


def _whole(parts: Sequence[bytes], encoding: str, max_bytes: int) -> bytes:
    body = b"".join(parts)
    return body if encoding in PLAIN else _inflated(body, encoding, max_bytes)


def _inflated(body: bytes, encoding: str, max_bytes: int) -> bytes:
    plain, rest = bytearray(), body
    for _ in range(MAX_MEMBERS):
        inflating = zlib.decompressobj(GZIP_OR_ZLIB)
        try:
            plain += inflating.decompress(rest, max_bytes + 1 - len(plain))
        except zlib.error as cause:
            malformed(HEADER, f"the body is not valid {encoding}: {cause}")
        if len(plain) > max_bytes:
            raise _too_large(max_bytes)
        if not inflating.eof:
            malformed(HEADER, f"the body's {encoding} ends too soon")
        rest = inflating.unused_data
        if not rest:
            return bytes(plain)
    return refuse(HEADER, f"the body's {encoding} has more than {MAX_MEMBERS} members")


def _too_large(max_bytes: int) -> RequestError:
    status, reason = HTTPStatus.REQUEST_ENTITY_TOO_LARGE, CallFailure.CONTEXT_OVERFLOW  # a history that has grown
    return RequestError(f"the request is above {max_bytes} bytes", status=status, reason=reason)
