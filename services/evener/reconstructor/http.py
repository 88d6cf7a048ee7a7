"""The reconstructor's HTTP endpoint: any session of the log, built again."""

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from evener.bus.port import Bus
from evener.client.views import SessionView
from evener.proto.errors import EvenerError
from evener.proto.spec import Strategy
from evener.proto.topics import HEADER_SESSION, Topic
from evener.service.auth import Secrets, operator_route
from evener.service.events import EventLog, header
from evener.tokens.conversation import conversation
from evener.tokens.rows import cut, main_branch
from evener.tokens.session import Session
from evener.tokens.trajectory import build


class Endpoints:
    """Reads sessions from the log, one at a time."""

    def __init__(self, bus: Bus, events: EventLog, secrets: Secrets) -> None:
        self._bus = bus
        self._events = events
        self._secrets = secrets

    def routes(self) -> list[BaseRoute]:
        """Return the routes to mount."""
        return [Route("/sessions/{session_id}", operator_route(self._secrets, self.session), methods=["GET"])]

    async def session(self, request: Request) -> Response:
        """Return a session's trajectory and the messages of each row, as JSON."""
        session_id = request.path_params["session_id"]
        try:
            strategy = Strategy(request.query_params.get("strategy", Strategy.TREE))
        except ValueError:
            return _refused(400, f"strategy is one of {', '.join(Strategy)}", "strategy")
        session = await self._read(session_id)
        if session.spec is None:
            return _refused(404, f"no session {session_id!r} in the log", "session_id")
        if session.sealed is None:
            return _refused(
                409, f"session {session_id} has not ended yet: attempt {session.attempt}, {len(session.forest.calls)} calls", None
            )
        trajectory = build(session, strategy=strategy)
        branches = cut(session, session.sealed.end, strategy).branches or (tuple(main_branch(session)),)
        view = SessionView(trajectory=trajectory, messages=tuple(tuple(conversation(session.forest, one)) for one in branches if one))
        return Response(msgspec.json.encode(view), media_type="application/json")

    async def _read(self, session_id: str) -> Session:
        session = Session(session_id)
        partition = self._bus.partition_of(Topic.SESSIONS, session_id)
        start = await self._bus.beginning(Topic.SESSIONS, partition)
        wanted = session_id.encode()
        async for record in self._bus.read(Topic.SESSIONS, partition, start):
            if record.key != session_id and header(record, HEADER_SESSION) != wanted:
                continue
            try:
                event = await self._events.event(record)
            except EvenerError as bad:
                session.doubts.append(f"record {record.offset}: {bad}")
                continue
            session.apply(event, offset=record.offset, record_at=record.timestamp_ms / 1000)
        return session


def _refused(status: int, message: str, field: str | None) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "field": field}}, status_code=status)
