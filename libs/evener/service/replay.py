"""POST /replay/{topic}/{partition}/{offset} appends the record at that position again, for the reader that gave it up."""

import re
from collections.abc import Sequence
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from evener.bus.port import Bus, Outgoing
from evener.proto.topics import TOPICS, Topic
from evener.service.auth import Secrets, control_route
from evener.service.http import error_response, json_response

NUMBER: Final = re.compile(r"[0-9]{1,18}")


def replay_routes(bus: Bus, secrets: Secrets) -> Sequence[BaseRoute]:
    """Return the route; it answers with the position of the new record."""

    async def replay(request: Request) -> Response:
        topic = request.path_params["topic"]
        given = tuple(request.path_params[name] for name in ("partition", "offset"))
        if not all(map(NUMBER.fullmatch, given)):
            return error_response(404, "partitions and offsets are whole numbers of at most 18 digits")
        partition, offset = map(int, given)
        if topic not in TOPICS or not 0 <= partition < bus.partitions_of(Topic(topic)):
            return error_response(404, f"there is no partition {partition} of topic {topic!r}")
        async for record in bus.read(topic, partition, offset):
            if record.offset != offset:
                break
            again = Outgoing(topic=topic, key=record.key, value=record.value, headers=record.headers, partition=partition)
            (position,) = await bus.send([again])
            return json_response(msgspec.structs.asdict(position))
        return error_response(404, f"there is no record at {topic}/{partition}@{offset} any more")

    return (Route("/replay/{topic}/{partition}/{offset}", control_route(secrets, replay), methods=["POST"]),)
