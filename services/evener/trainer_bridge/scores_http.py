"""GET /scores/{session_id}: what a session was worth, what its grader left, and what became of it in its group."""

from collections.abc import AsyncIterator
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from evener.bus.port import Bus
from evener.client.session_views import Score, ScoreView, Use
from evener.proto.codec import AnyEvent, BadRecord
from evener.proto.topics import HEADER_SESSION, Topic
from evener.proto.trajectories import GroupFailed, GroupMerged, TrajectoryScored
from evener.service.auth import operator_route
from evener.service.events import EventLog, header
from evener.service.http import json_response
from evener.service.parts import Parts

ENDS: Final = (Topic.MERGED, Topic.KEPT)


def scores_route(parts: Parts) -> BaseRoute:
    """Return the endpoint; it wants the operator's token."""
    scores = Scores(parts.bus, EventLog(parts.bus, parts.blobs))

    async def score(request: Request) -> Response:
        return json_response(await scores.of(request.path_params["session_id"]))

    return Route("/scores/{session_id}", operator_route(parts.secrets, score), methods=["GET"])


class Scores:
    """Sessions as they were scored, and used, read from the log."""

    def __init__(self, bus: Bus, events: EventLog) -> None:
        self._bus = bus
        self._events = events

    async def of(self, session_id: str) -> ScoreView:
        """Return what is known of a session; nothing of one that was not graded yet, or is not there."""
        group_id = session_id.rpartition(".")[0]
        score = use = None
        async for event in self._read(Topic.SCORED, group_id, session_id):
            if isinstance(event, TrajectoryScored):
                score = _score(event)
                break  # the first one counts
        for topic in ENDS:
            async for event in self._read(topic, group_id):
                if isinstance(event, GroupMerged | GroupFailed):
                    use = _use(event, session_id)
        return ScoreView(session_id=session_id, score=score, use=use)

    async def _read(self, topic: Topic, group_id: str, session_id: str | None = None) -> AsyncIterator[AnyEvent]:
        """Yield the events of a group (of one session), blobs left where they are."""
        partition = self._bus.partition_of(Topic.SCORED, group_id)
        wanted = None if session_id is None else session_id.encode()
        async for record in self._bus.read(topic, partition, await self._bus.beginning(topic, partition)):
            if record.key == group_id and wanted in {None, header(record, HEADER_SESSION)}:
                try:
                    yield await self._events.light(record)
                except BadRecord:
                    continue


def _score(event: TrajectoryScored) -> Score:
    return Score(
        reward=event.reward,
        rewards=event.rewards,
        ungraded=event.ungraded,
        grader=event.grader,
        evidence=event.evidence,
        grading_seconds=event.grading_seconds,
        tries=event.tries,
    )


def _use(event: GroupMerged | GroupFailed, session_id: str) -> Use:
    member = next((member for member in event.members if member.session_id == session_id), None)
    return Use(
        group_id=event.group_id,
        purpose=event.purpose,
        delivered=isinstance(event, GroupMerged),
        reason="" if isinstance(event, GroupMerged) else event.reason,
        left_out=None if member is None else member.left_out,
    )
