"""Bodies of control endpoints are bounded, and refused in one form."""

import io

import msgspec
import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from tests.support.service_context import OPERATOR, operator
from tests.support.world import World, user

from evener.client.session_views import SessionSource, SessionView
from evener.proto.spec import Strategy
from evener.reconstructor.view import view_of
from evener.service.auth import Secrets, control_route
from evener.service.http import BODY_BYTES, decoded, json_response, long_json_response

SECRETS = Secrets(operator_token=OPERATOR, capability_key=b"key")
_ids = msgspec.json.Decoder(list[int])
_views = msgspec.json.Decoder(SessionView)


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


async def test_long_answer_is_the_same_json_in_parts() -> None:
    """Encoded at once, 90 MB of a session stop the loop, from whatever thread."""
    world = World()
    world.ask([user("hi")], "there " * 50_000)
    world.seal()
    view = view_of(world.session, SessionSource.LOG, Strategy.TREE)
    response = await long_json_response(view)
    assert isinstance(response, StreamingResponse)
    pieces = [piece async for piece in response.body_iterator]
    assert len(pieces) > 1
    assert _views.decode(b"".join(piece for piece in pieces if isinstance(piece, bytes))) == view
