"""Bodies of control endpoints are bounded, and refused in one form."""

import io

import msgspec
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tests.support.service_context import OPERATOR, operator

from evener.service.auth import Secrets, control_route
from evener.service.http import BODY_BYTES, decoded, json_response

SECRETS = Secrets(operator_token=OPERATOR, capability_key=b"key")
_ids = msgspec.json.Decoder(list[int])


async def counted(request: Request) -> Response:
    ids: list[int] = await decoded(request, _ids)
    return json_response(len(ids))


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        (b"[1,2,3]", 200, "3"),
        (b"[1,", 400, "truncated"),
        (b'["x"]', 400, "Expected `int`, got `str`"),
        (b"\xff", 400, "malformed"),
        (b"[" + b" " * BODY_BYTES + b"]", 413, f"larger than {BODY_BYTES} bytes"),
    ],
)
async def test_body_is_decoded_or_refused_with_what_is_wrong(body: bytes, status: int, told: str) -> None:
    async with (
        operator([Route("/", control_route(SECRETS, counted), methods=["POST"])]) as http,
        http.post("/", data=io.BytesIO(body)) as answer,
    ):
        assert answer.status == status
        assert told in await answer.text()
