"""For trainers and people without Kafka: groups that have ended, as a stream.

GET /groups?run_id=&purpose=&after= streams GroupMerged and GroupFailed events up to the log's end, blobs fetched: NDJSON (arrays
in base64), or, with `Accept: application/x-msgpack`, msgpack maps with their 4-byte big-endian length before each. `after` is
in Unix seconds: groups that ended later. GET /groups/{id} gives one.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from evener.blobs.waited import ANSWER_SECONDS, Waited
from evener.bus.port import Bus, Record
from evener.proto.codec import BadRecord, encode
from evener.proto.errors import Recoverable
from evener.proto.prepared import Converter
from evener.proto.spec import Purpose
from evener.proto.topics import Topic
from evener.proto.trajectories import GroupFailed, GroupMerged
from evener.service.auth import operator_route
from evener.service.events import EventLog
from evener.service.http import error_response, json_response
from evener.service.parts import Parts
from evener.trainer_bridge.core import TOPIC_OF, Outcome

MSGPACK: Final = "application/x-msgpack"
NDJSON: Final = "application/x-ndjson"
RETRY: Final = {"retry-after": "2"}


class Wanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which groups. None: any."""

    run_id: str | None = None
    purpose: Purpose | None = None
    after: float | None = None


_queries: Final = Converter(Wanted, strict=False)


def routes(parts: Parts) -> Sequence[BaseRoute]:
    """Return the endpoints for groups; each wants the operator's token."""
    groups = Groups(parts.bus, EventLog(parts.bus, Waited(parts.blobs, ANSWER_SECONDS)))

    async def listed(request: Request) -> Response:
        try:
            wanted = _queries.convert(dict(request.query_params))
        except msgspec.ValidationError as cause:
            return error_response(400, f"query: {cause}")
        packed = request.headers.get("accept") == MSGPACK
        stream = _stream(groups.ended(wanted), _frame if packed else _line)
        return StreamingResponse(stream, media_type=MSGPACK if packed else NDJSON)

    async def one(request: Request) -> Response:
        group_id = request.path_params["group_id"]
        try:
            event = await groups.one(group_id)
        except Recoverable as away:
            return error_response(503, str(away), headers=RETRY)
        if event is None:
            return error_response(404, f"no group {group_id} has ended")
        packed = request.headers.get("accept") == MSGPACK
        return Response(encode(event), media_type=MSGPACK) if packed else json_response(event)

    return tuple(
        Route(path, operator_route(parts.secrets, handler), methods=["GET"])
        for path, handler in (("/groups", listed), ("/groups/{group_id}", one))
    )


class Groups:
    """Groups that have ended, read from `merged` and `kept`."""

    def __init__(self, bus: Bus, events: EventLog) -> None:
        self._bus = bus
        self._events = events

    async def ended(self, wanted: Wanted) -> AsyncIterator[Outcome]:
        """Yield wanted groups, partition by partition, each in its order."""
        purposes = Purpose if wanted.purpose is None else (wanted.purpose,)
        for topic in sorted({TOPIC_OF[purpose] for purpose in purposes}):
            for partition in range(self._bus.partitions_of(topic)):
                async for event in self._read(topic, partition, lambda event: _is_wanted(event, wanted)):
                    yield event

    async def one(self, group_id: str) -> Outcome | None:
        """Return a group that has ended. None: it has not, or is not known."""
        partition = self._bus.partition_of(Topic.SCORED, group_id)
        for topic in (Topic.MERGED, Topic.KEPT):
            async for event in self._read(topic, partition, lambda event: event.group_id == group_id):
                return event
        return None

    async def _read(self, topic: Topic, partition: int, keep: Callable[[Outcome], bool]) -> AsyncIterator[Outcome]:
        """Yield the groups to keep; blobs are fetched for those alone."""
        async for record in self._bus.read(topic, partition, await self._bus.beginning(topic, partition)):
            event = await self._light(record)
            if event is not None and keep(event):
                fetched = await self._events.event(record)
                if isinstance(fetched, GroupMerged | GroupFailed):
                    yield fetched

    async def _light(self, record: Record) -> Outcome | None:
        try:
            event = await self._events.light(record)
        except BadRecord:
            return None
        return event if isinstance(event, GroupMerged | GroupFailed) else None


def _is_wanted(event: Outcome, wanted: Wanted) -> bool:
    ended_at = event.merged_at if isinstance(event, GroupMerged) else event.failed_at
    return (
        wanted.run_id in {None, event.run_id}
        and wanted.purpose in {None, event.purpose}
        and (wanted.after is None or ended_at > wanted.after)
    )


async def _stream(events: AsyncIterator[Outcome], write: Callable[[Outcome], bytes]) -> AsyncIterator[bytes]:
    async for event in events:
        yield write(event)


def _line(event: Outcome) -> bytes:
    return msgspec.json.encode(event) + b"\n"


def _frame(event: Outcome) -> bytes:
    body = encode(event)
    return len(body).to_bytes(4, "big") + body
