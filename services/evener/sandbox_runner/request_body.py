"""The body of a harness's request as its dialect reads it. Errors in the body are answered in the dialect."""

import asyncio
import zlib
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final, Protocol

from aiohttp import web

from evener.dialects.canonical import Dialect, RequestError, RequestHints
from evener.dialects.fields import malformed, refuse
from evener.proto.reasons import CallFailure
from evener.runtime.threads import Threads
from evener.runtime.time_limits import stopped
from evener.sandbox_runner.exchange import Limits
from evener.sandbox_runner.http_server import BrokenBody

HEADER: Final = "content-encoding"
PLAIN: Final = ("", "identity")
INFLATED: Final = ("gzip", "deflate")
GZIP_OR_ZLIB: Final = 32 + zlib.MAX_WBITS
"""Tells zlib to find out by the first bytes which of the two formats the body has."""
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
BODY_THREADS: Final = Threads("relay", 2)
"""Bodies are joined, inflated and looked at here."""
PARSED_AT_ONCE_BYTES: Final = 64 << 10
BODY_STEP_BYTES: Final = 256 << 10
"""Room for a body of unknown length is taken in steps of this size."""
BODY_PIECE_BYTES: Final = 64 << 10
"""What comes is kept in pieces of at least this size: objects of a few bytes each would take many times a body's length."""
MAX_MEMBERS: Final = 100
"""Compressed bodies one after the other in one: each costs a copy of the rest."""


class MakeRoom(Protocol):
    """Makes room for a body."""

    async def __call__(self, size: int, /) -> None:
        """Wait until so many bytes of the body may be held in all. Raises RequestError."""
        ...


async def read_body(request: web.BaseRequest, limits: Limits, hold: MakeRoom) -> bytes:
    """Return the body, decoded. Room for it is made before it comes, or as it comes if it does not say its length. Raises RequestError."""
    max_bytes = limits.body_bytes
    encoding = request.headers.get(HEADER, "").strip().lower()
    if encoding not in {*PLAIN, *INFLATED}:
        said = encoding.encode(errors="backslashreplace").decode()  # a header may have bytes that are no text
        refuse(HEADER, f"{said} is not served; send the body plain, or as {' or '.join(INFLATED)}")
    await hold(min(request.content_length or 0, max_bytes))
    if request.headers.get("expect", "").lower() == "100-continue":
        await request.writer.write(CONTINUE)
        request.writer.output_size = 0  # nothing of the response was sent
    try:
        async with asyncio.timeout(limits.body_seconds) as limit:
            pieces, size = await _received(request, max_bytes, hold, limit)
    except TimeoutError:
        message = f"the body did not come within {limits.body_seconds:g} seconds"
        raise RequestError(message, status=HTTPStatus.REQUEST_TIMEOUT, reason=CallFailure.MALFORMED) from None
    except BrokenBody as fault:
        malformed("", f"the body is not valid HTTP: {fault}")
    if encoding in PLAIN and size <= PARSED_AT_ONCE_BYTES:
        return b"".join(pieces)
    if encoding in INFLATED:
        await hold(max_bytes)
    return await BODY_THREADS.run(_whole, pieces, encoding, max_bytes)


async def read_hints(dialect: Dialect, path: str, body: bytes) -> RequestHints:
    """Return the fields of a request that the relay must know. A large body is read in a thread."""
    return dialect.hints(path, body) if len(body) <= PARSED_AT_ONCE_BYTES else await BODY_THREADS.run(dialect.hints, path, body)


async def _received(request: web.BaseRequest, max_bytes: int, hold: MakeRoom, limit: asyncio.Timeout) -> tuple[list[bytearray], int]:
    """Return the pieces of the body, and its length. The waits for room are not part of the time limit."""
    pieces, size = list[bytearray](), 0
    async for part in request.content.iter_any():
        size += len(part)
        if size > max_bytes:
            raise _too_large(max_bytes)
        with stopped(limit):
            await hold(size if size <= (request.content_length or 0) else size + BODY_STEP_BYTES - size % BODY_STEP_BYTES)
        if pieces and len(pieces[-1]) < BODY_PIECE_BYTES:
            pieces[-1] += part
        else:
            pieces.append(bytearray(part))
    if (fault := request.content.exception()) is not None:  # it came with the last bytes
        raise fault
    return pieces, size


def _whole(pieces: Sequence[bytearray], encoding: str, max_bytes: int) -> bytes:
    body = b"".join(pieces)
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
