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

from evener.client.session_views import RebuildRequest, Rebuilt
from evener.proto.errors import EvenerError, Recoverable
from evener.proto.framing import MSGPACK, framed
from evener.proto.spec import Strategy
from evener.reconstructor.stored import Stored
from evener.reconstructor.view import view_of
from evener.service.auth import Secrets, control_route, principal_of
from evener.service.http import RETRY_LATER, decoded, error_response, long_json_response
from evener.service.principals import Role
from evener.tokens.kept import KeptSession

_requests: Final = msgspec.json.Decoder(RebuildRequest)


def session_routes(stored: Stored, secrets: Secrets) -> list[BaseRoute]:
    """Return the endpoints, which answer from stored records. A principal gets sessions of its team."""

    async def session(request: Request) -> Response:
        """Answer with a session, ended or not: its calls, its rows and its messages, as JSON."""
        session_id = request.path_params["session_id"]
        try:
            strategy = Strategy(request.query_params.get("strategy", Strategy.TREE))
        except ValueError:
            return error_response(400, f"strategy is one of {', '.join(Strategy)}", "strategy")
        try:
            found = await stored.find(session_id)
        except Recoverable as away:
            return error_response(503, f"the records of session {session_id}: {away}", headers=RETRY_LATER)
        except EvenerError as failed:
            return error_response(500, f"the records of session {session_id}: {failed}")
        if found is None or not _is_seen(request, found[0]):
            return error_response(404, f"no session {session_id!r} in the log", "session_id")
        read, source = found
        try:
            view = await asyncio.to_thread(view_of, read.session, source, strategy)
        except ValueError as cause:
            return error_response(500, str(cause))
        return await long_json_response(view)

    async def rebuild(request: Request) -> Response:
        """Rebuild stored sessions."""
        wanted = await decoded(request, _requests)
        return StreamingResponse(_frames(stored.rebuild(wanted, principal_of(request).sees)), media_type=MSGPACK)

    return [
        Route("/sessions/{session_id}", control_route(secrets, session, Role.VIEWER), methods=["GET"]),
        Route("/rebuild", control_route(secrets, rebuild, Role.USER, quiet=True), methods=["POST"]),
    ]


def _is_seen(request: Request, found: KeptSession) -> bool:
    spec = found.session.spec
    return principal_of(request).sees("" if spec is None else spec.team)


async def _frames(sessions: AsyncIterator[Rebuilt | None]) -> AsyncIterator[bytes]:
    async for rebuilt in sessions:
        yield framed(b"" if rebuilt is None else msgspec.msgpack.encode(rebuilt))
