"""Bodies and JSON answers of the control endpoints."""

import asyncio
import io
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from evener.proto.errors import EvenerError

T = TypeVar("T")
BODY_BYTES: Final = 2 << 20
"""The limit of a body in JSON, which is decoded on the event loop: the ids of a whole vocabulary."""


PIECE_BYTES: Final = 256 << 10
"""A long answer is written in pieces of at least this size."""
PART_LEVELS: Final = 3
"""Down to a row of a session's trajectory, which takes a millisecond or two."""
RETRY_LATER: Final = {"retry-after": "2"}
"""The headers of a 503 whose cause passes by itself."""


class BodyRefused(EvenerError):
    """Correct the body, and send the request again."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


async def body_of(request: Request, limit: int) -> bytes:
    """Return the body, read up to a limit in bytes. Raises BodyRefused."""
    body = io.BytesIO()  # it grows as the parts come: to join 50 MB at the end would stop the loop
    async for part in request.stream():
        if body.tell() + len(part) > limit:
            raise BodyRefused(413, f"the body is larger than {limit} bytes")
        body.write(part)
    return body.getvalue()


async def decoded(request: Request, decoder: msgspec.json.Decoder[T]) -> T:
    """Return the body, decoded from JSON. Raises BodyRefused."""
    try:
        return decoder.decode(await body_of(request, BODY_BYTES))
    except (msgspec.DecodeError, UnicodeDecodeError) as cause:
        raise BodyRefused(400, str(cause)) from cause


def json_response(body: object, status: int = 200, *, headers: dict[str, str] | None = None) -> Response:
    """Return a JSON answer of anything that msgspec can encode."""
    return Response(msgspec.json.encode(body), status, headers=headers, media_type="application/json")


async def long_json_response(body: msgspec.Struct) -> Response:
    """Return a JSON answer that may have 100 MB. It is encoded in a thread, in parts: between two of them the loop goes on."""
    pieces = await asyncio.to_thread(list, _pieces(body))
    return StreamingResponse(_in_turn(pieces), media_type="application/json")


async def _in_turn(pieces: list[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
        await asyncio.sleep(0)


def _pieces(body: msgspec.Struct) -> Iterator[bytes]:
    """Yield a value as JSON, small parts together."""
    piece = bytearray()
    for part in _json_parts(body, PART_LEVELS):
        piece += part
        if len(piece) > PIECE_BYTES:
            yield bytes(piece)
            piece = bytearray()
    yield bytes(piece)


def _json_parts(value: object, levels: int) -> Iterator[bytes]:
    """Yield a value as JSON, its fields and items alone down to so many levels."""
    if levels and isinstance(value, msgspec.Struct):
        tag = value.__struct_config__
        pairs: list[tuple[str, Any]] = [] if tag.tag_field is None else [(tag.tag_field, tag.tag)]
        pairs += [
            (name, getattr(value, field)) for name, field in zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        ]
        for number, (name, part) in enumerate(pairs):
            yield (b"," if number else b"{") + msgspec.json.encode(name) + b":"
            yield from _json_parts(part, levels - 1)
        yield b"}" if pairs else b"{}"
    elif levels and isinstance(value, tuple | list):
        yield b"["
        for number, part in enumerate(value):
            if number:
                yield b","
            yield from _json_parts(part, levels - 1)
        yield b"]"
    else:
        yield msgspec.json.encode(value)


def error_response(status: int, message: str, field: str | None = None, *, headers: dict[str, str] | None = None) -> Response:
    """Return `{"error": {"message", "field"}}`. `field` names the wrong part of the request."""
    return json_response({"error": {"message": message, "field": field}}, status, headers=headers)
