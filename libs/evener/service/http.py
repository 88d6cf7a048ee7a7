"""JSON answers of the control endpoints."""

import msgspec
from starlette.responses import Response


def json_response(body: object, status: int = 200, *, headers: dict[str, str] | None = None) -> Response:
    """Return a JSON answer of anything that msgspec can encode."""
    return Response(msgspec.json.encode(body), status, headers=headers, media_type="application/json")


def error_response(status: int, message: str, field: str | None = None, *, headers: dict[str, str] | None = None) -> Response:
    """Return `{"error": {"message", "field"}}`. `field` names the wrong part of the request."""
    return json_response({"error": {"message": message, "field": field}}, status, headers=headers)
