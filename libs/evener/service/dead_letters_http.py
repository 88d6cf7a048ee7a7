"""GET /dead-letters lists what services could not read; POST /dead-letters/replay appends such records again. Every process serves both."""

from collections.abc import Sequence
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from evener.blobs.port import BlobError
from evener.bus.port import BusError
from evener.proto.letters import LetterQuery, ReplayRequest
from evener.proto.prepared import Converter
from evener.service.auth import Handler, Secrets, control_route, principal_of
from evener.service.dead_letters import DeadLetters
from evener.service.http import RETRY_LATER, decoded, error_response, json_response

_queries: Final = Converter(LetterQuery, strict=False)
_requests: Final = msgspec.json.Decoder(ReplayRequest)


def dead_letter_routes(letters: DeadLetters, secrets: Secrets) -> Sequence[BaseRoute]:
    """Return the routes. Both need the role admin."""

    async def listed(request: Request) -> Response:
        try:
            query = _queries.convert(dict(request.query_params))
        except msgspec.ValidationError as wrong:
            return error_response(400, str(wrong))
        return json_response(await letters.list(query))

    async def replay(request: Request) -> Response:
        asked = await decoded(request, _requests)
        if not asked.positions and asked.query is None:
            return error_response(400, "name positions, or give a query, whose open letters are all replayed", "positions")
        return json_response(await letters.replay(asked.positions, asked.query, principal_of(request).name))

    return (
        Route("/dead-letters", control_route(secrets, _answered(listed)), methods=["GET"]),
        Route("/dead-letters/replay", control_route(secrets, _answered(replay)), methods=["POST"]),
    )


def _answered(handler: Handler) -> Handler:
    """Answer 503 while bus or blobs are away, and where another process replays at the same time."""

    async def endpoint(request: Request) -> Response:
        try:
            return await handler(request)
        except (BusError, BlobError) as error:
            return error_response(503, str(error), headers=RETRY_LATER)

    return endpoint
