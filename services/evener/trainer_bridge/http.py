"""Groups that have ended and scores of sessions over HTTP, for trainers and people without Kafka.

GET /groups?run_id=&purpose=&after= streams GroupMerged and GroupFailed events up to the log's end, with blobs fetched: NDJSON (arrays in
base64), or, with `Accept: application/x-msgpack`, msgpack maps, each after its 4-byte big-endian length. `after` is in Unix seconds and
selects the groups that ended later. GET /groups/{id} returns one group. GET /scores/{session_id} returns a session's reward, what its
grader left, and how its group ended.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from evener.client.session_views import Score, ScoreView, Use
from evener.proto.codec import encode
from evener.proto.errors import Recoverable
from evener.proto.fields import shared_fields
from evener.proto.framing import MSGPACK, framed
from evener.proto.prepared import Converter
from evener.proto.trajectories import GroupMerged, GroupOutcome
from evener.service.auth import Secrets, control_route, principal_of
from evener.service.http import RETRY_LATER, error_response, json_response
from evener.service.principals import Role
from evener.trainer_bridge.groups import GroupQuery, GroupReader

NDJSON: Final = "application/x-ndjson"

_queries: Final = Converter(GroupQuery, strict=False)


def group_routes(secrets: Secrets, groups: GroupReader) -> Sequence[BaseRoute]:
    """Return the endpoints for groups and sessions. A principal gets those of its team."""

    async def listed(request: Request) -> Response:
        try:
            query = _queries.convert(dict(request.query_params))
        except msgspec.ValidationError as cause:
            return error_response(400, f"query: {cause}")
        packed = request.headers.get("accept") == MSGPACK
        return StreamingResponse(
            _written(groups.ended(query, principal_of(request).sees), packed=packed), media_type=MSGPACK if packed else NDJSON
        )

    async def one(request: Request) -> Response:
        group_id = request.path_params["group_id"]
        try:
            event = await groups.one(group_id)
        except Recoverable as away:
            return error_response(503, str(away), headers=RETRY_LATER)
        if event is None or not principal_of(request).sees(event.team):
            message = f"group {group_id} has not ended, or ended so long ago that only GET /groups still has it (keep_ended_seconds)"
            return error_response(404, message)
        packed = request.headers.get("accept") == MSGPACK
        return Response(encode(event), media_type=MSGPACK) if packed else json_response(event)

    async def score(request: Request) -> Response:
        session_id = request.path_params["session_id"]
        try:
            scored, event = await groups.session(session_id)
        except Recoverable as away:
            return error_response(503, str(away), headers=RETRY_LATER)
        team = scored.trajectory.spec.team if scored is not None else event.team if event is not None else ""
        if not principal_of(request).sees(team):
            scored, event = None, None
        told = None if scored is None else Score(**shared_fields(scored, Score))
        return json_response(ScoreView(session_id=session_id, score=told, use=None if event is None else _use(event, session_id)))

    table = (("/groups", listed), ("/groups/{group_id}", one), ("/scores/{session_id}", score))
    return tuple(Route(path, control_route(secrets, handler, Role.VIEWER), methods=["GET"]) for path, handler in table)


async def _written(events: AsyncIterator[GroupOutcome], *, packed: bool) -> AsyncIterator[bytes]:
    async for event in events:
        yield framed(encode(event)) if packed else msgspec.json.encode(event) + b"\n"


def _use(event: GroupOutcome, session_id: str) -> Use:
    member = next((member for member in event.members if member.session_id == session_id), None)
    return Use(
        group_id=event.group_id,
        purpose=event.purpose,
        delivered=isinstance(event, GroupMerged),
        reason="" if isinstance(event, GroupMerged) else event.reason,
        excluded=None if member is None else member.excluded,
    )
