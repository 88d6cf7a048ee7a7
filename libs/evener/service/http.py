"""Bodies and JSON answers of the control endpoints."""

import io
from typing import Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from evener.proto.errors import EvenerError

T = TypeVar("T")
BODY_BYTES: Final = 2 << 20
"""The limit of a body in JSON, which is decoded on the event loop: the ids of a whole vocabulary."""


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


def error_response(status: int, message: str, field: str | None = None, *, headers: dict[str, str] | None = None) -> Response:
    """Return `{"error": {"message", "field"}}`. `field` names the wrong part of the request."""
    return json_response({"error": {"message": message, "field": field}}, status, headers=headers)
