"""GET /groups/follow?at=0:12,3:4&follow=true: streams `trajectories.merged` to trainers, from a position, without end.

The stream consists of frames, each after its 4-byte big-endian length. A msgpack map (`GroupPosition`) says in how many further frames its
group comes. A length of 0 says that no group has come for a while.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Final

import msgspec
from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from evener.proto.delivered import Delivered, parts_of
from evener.proto.framing import MSGPACK, framed
from evener.service.auth import control_route, principal_of
from evener.service.context import ServiceContext
from evener.service.delivered import PositionUnknown, check_position, delivered
from evener.service.events import EventLog
from evener.service.http import RETRY_LATER, error_response
from evener.service.principals import Role

EMPTY_FRAME_SECONDS: Final = 15.0
"""After this long without a group, the reader gets a length of 0 as a sign of life."""
AT: Final = re.compile(r"(\d{1,9}:\d{1,18}(,\d{1,9}:\d{1,18})*)?")
EMPTY_FRAME: Final = framed(b"")


class Followers:
    """The readers that are served now."""

    def __init__(self, limit: int) -> None:
        self.limit: Final = limit
        self.count = 0

    @property
    def are_too_many(self) -> bool:
        """Whether no further one is served."""
        return self.count >= self.limit


class FollowedGroups(StreamingResponse):
    """The stream of one reader, which counts from its first byte to its end, however it ends."""

    def __init__(self, groups: AsyncGenerator[Delivered, None], followers: Followers) -> None:
        super().__init__(_frames(groups), media_type=MSGPACK)
        self._followers = followers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._followers.count += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._followers.count -= 1


def following_routes(context: ServiceContext, limit: int) -> Sequence[BaseRoute]:
    """Return the endpoint. A principal gets the groups of its team. `limit`: of readers at a time."""
    followers = Followers(limit)
    waiting = EventLog(context.bus, context.waiting_blobs())
    asking = EventLog(context.bus, context.answering_blobs())

    async def stream(request: Request) -> Response:
        at, follow = request.query_params.get("at", ""), request.query_params.get("follow", "true")
        if not AT.fullmatch(at) or follow not in {"true", "false"}:
            return error_response(400, "write at=PARTITION:OFFSET,... and follow=true or false")
        position = {int(partition): int(offset) for partition, _, offset in (one.partition(":") for one in at.split(",") if one)}
        try:
            await check_position(context.bus, position)
        except PositionUnknown as unknown:
            return error_response(409, str(unknown), "at")
        if followers.are_too_many:
            msg = f"this process serves {limit} readers of groups at a time, and has as many; close one, or raise the bridge's `followers`"
            return error_response(503, msg, headers=RETRY_LATER)
        followed = follow == "true"
        groups = delivered(context.bus, waiting if followed else asking, position, follow=followed, sees=principal_of(request).sees)
        return FollowedGroups(groups, followers)

    return (Route("/groups/follow", control_route(context.secrets, stream, Role.VIEWER), methods=["GET"]),)


async def _frames(groups: AsyncGenerator[Delivered, None]) -> AsyncIterator[bytes]:
    async with aclosing(groups):
        pending = asyncio.ensure_future(anext(groups, None))
        try:
            while True:
                done, _ = await asyncio.wait({pending}, timeout=EMPTY_FRAME_SECONDS)
                if not done:
                    yield EMPTY_FRAME
                    continue
                if (group := pending.result()) is None:
                    return
                pending = asyncio.ensure_future(anext(groups, None))
                for piece in await asyncio.to_thread(_pieces, group):
                    yield piece
                    await asyncio.sleep(0)  # so that a connection that was lost is noticed before the next one
        finally:
            pending.cancel()
            await asyncio.gather(pending, return_exceptions=True)


def _pieces(delivered: Delivered) -> list[bytes]:
    """Return the frames of a group: its position, then its parts. Call it in a thread."""
    parts = [] if delivered.group is None else [framed(part) for part in parts_of(delivered.group)]
    return [framed(msgspec.msgpack.encode(structs.replace(delivered.position, parts=len(parts)))), *parts]
