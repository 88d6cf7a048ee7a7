"""GET /groups/follow?at=0:12,3:4&follow=true: `trajectories.merged` for trainers, from a position, for ever.

Msgpack maps (`Delivered`) with their 4-byte big-endian length before each; a length of 0 says that nothing has come for a while.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from evener.blobs.waited import ANSWER_SECONDS, Waited
from evener.client.views import Delivered
from evener.service.auth import operator_route
from evener.service.delivered import PositionUnknown, check_position, delivered
from evener.service.events import EventLog
from evener.service.http import error_response
from evener.service.parts import Parts

MSGPACK: Final = "application/x-msgpack"
QUIET_SECONDS: Final = 15.0
"""After so long without a group the reader is told that all is well."""
AT: Final = re.compile(r"(\d{1,9}:\d{1,18}(,\d{1,9}:\d{1,18})*)?")
NOTHING: Final = bytes(4)


def following_routes(parts: Parts) -> Sequence[BaseRoute]:
    """Return the endpoint; it wants the operator's token."""
    waiting = EventLog(parts.bus, Waited(parts.blobs))
    asking = EventLog(parts.bus, Waited(parts.blobs, ANSWER_SECONDS))

    async def stream(request: Request) -> Response:
        at, follow = request.query_params.get("at", ""), request.query_params.get("follow", "true")
        if not AT.fullmatch(at) or follow not in {"true", "false"}:
            return error_response(400, "write at=PARTITION:OFFSET,... and follow=true or false")
        position = {int(partition): int(offset) for partition, _, offset in (place.partition(":") for place in at.split(",") if place)}
        try:
            await check_position(parts.bus, position)
        except PositionUnknown as unknown:
            return error_response(409, str(unknown), "at")
        followed = follow == "true"
        groups = delivered(parts.bus, waiting if followed else asking, position, follow=followed)
        return StreamingResponse(_frames(groups), media_type=MSGPACK)

    return (Route("/groups/follow", operator_route(parts.secrets, stream), methods=["GET"]),)


async def _frames(groups: AsyncGenerator[Delivered, None]) -> AsyncIterator[bytes]:
    async with aclosing(groups):
        pending = asyncio.ensure_future(anext(groups, None))
        try:
            while True:
                done, _ = await asyncio.wait({pending}, timeout=QUIET_SECONDS)
                if not done:
                    yield NOTHING
                    continue
                if (group := pending.result()) is None:
                    return
                pending = asyncio.ensure_future(anext(groups, None))
                body = msgspec.msgpack.encode(group)
                yield len(body).to_bytes(4, "big") + body
        finally:
            pending.cancel()
            await asyncio.gather(pending, return_exceptions=True)
