"""The reconstructor's HTTP endpoints: any session of the log as it is, and stored sessions rebuilt and compared.

GET /sessions/{id}?strategy= answers with a SessionView. POST /rebuild takes a RebuildRequest and streams a Rebuilt for each session:
msgpack maps, each preceded by its length as 4 big-endian bytes. A length of 0 means that the search continues.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from evener.client.session_views import RebuildRequest
from evener.proto.errors import EvenerError, Recoverable
from evener.proto.framing import framed
from evener.proto.spec import Strategy
from evener.reconstructor.stored import Stored
from evener.reconstructor.view import view_of
from evener.service.auth import Secrets, operator_route
from evener.service.http import error_response, json_response

MSGPACK: Final = "application/x-msgpack"
RETRY: Final = {"retry-after": "2"}

_requests: Final = msgspec.json.Decoder(RebuildRequest)


class ReconstructorEndpoints:
    """The handlers, which answer from stored records."""

    def __init__(self, stored: Stored, secrets: Secrets) -> None:
        self._stored = stored
        self._secrets = secrets

    def routes(self) -> list[BaseRoute]:
        """Return the routes to mount."""
        return [
            Route("/sessions/{session_id}", operator_route(self._secrets, self.session), methods=["GET"]),
            Route("/rebuild", operator_route(self._secrets, self.rebuild), methods=["POST"]),
        ]

    async def session(self, request: Request) -> Response:
        """Answer with a session, ended or not: its calls, its rows and its messages, as JSON."""
        session_id = request.path_params["session_id"]
        try:
            strategy = Strategy(request.query_params.get("strategy", Strategy.TREE))
        except ValueError:
            return error_response(400, f"strategy is one of {', '.join(Strategy)}", "strategy")
        try:
            found = await self._stored.find(session_id)
        except Recoverable as away:
            return error_response(503, f"the records of session {session_id}: {away}", headers=RETRY)
        except EvenerError as failed:
            return error_response(500, f"the records of session {session_id}: {failed}")
        if found is None:
            return error_response(404, f"no session {session_id!r} in the log", "session_id")
        read, source = found
        try:
            return json_response(await asyncio.to_thread(view_of, read.session, source, strategy))
        except ValueError as cause:
            return error_response(500, str(cause))

    async def rebuild(self, request: Request) -> Response:
        """Rebuild stored sessions."""
        try:
            wanted = _requests.decode(await request.body())
        except msgspec.DecodeError as cause:
            return error_response(400, str(cause))
        return StreamingResponse(self._frames(wanted), media_type=MSGPACK)

    async def _frames(self, wanted: RebuildRequest) -> AsyncIterator[bytes]:
        async for rebuilt in self._stored.rebuild(wanted):
            yield framed(b"" if rebuilt is None else msgspec.msgpack.encode(rebuilt))
