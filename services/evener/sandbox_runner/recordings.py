"""Recordings: sessions whose process somebody else runs. The runner keeps their relay open while their owner sends heartbeats."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from evener.client.views import RecordingView
from evener.service.auth import Secrets, control_route, principal_of
from evener.service.http import decoded, error_response, json_response
from evener.service.principals import Role


class RecordingExited(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The recorded program exited."""

    exit_code: Annotated[int, Meta(ge=-255, le=255)] | None = None
    reward: float | None = None


_exits: Final = msgspec.json.Decoder(RecordingExited)


class OpenRecording:
    """One open recording."""

    def __init__(self, opened: RecordingView, team: str) -> None:
        self.opened = opened
        self.team = team
        self.exited: asyncio.Future[RecordingExited] = asyncio.get_running_loop().create_future()
        self.last_sign = time.monotonic()

    async def wait(self, silence_seconds: float) -> RecordingExited:
        """Wait for the exit, or for `silence_seconds` without a heartbeat: then nothing is known of the exit."""
        while (left := self.last_sign + silence_seconds - time.monotonic()) > 0:
            done, _ = await asyncio.wait([self.exited], timeout=left)
            if done:
                return self.exited.result()
        return RecordingExited()


class Recordings:
    """Open recordings by session, and their endpoints."""

    def __init__(self, secrets: Secrets) -> None:
        self._open: dict[str, OpenRecording] = {}
        self._secrets = secrets

    @contextmanager
    def open(self, session_id: str, opened: RecordingView, team: str) -> Iterator[OpenRecording]:
        """Offer a recording to its team while this block runs."""
        recording = self._open[session_id] = OpenRecording(opened, team)
        try:
            yield recording
        finally:
            if self._open.get(session_id) is recording:
                del self._open[session_id]

    def routes(self) -> list[BaseRoute]:
        """Return the endpoints to mount."""
        path = "/recordings/{session_id}"
        return [
            Route(path, control_route(self._secrets, self._show, Role.USER), methods=["GET"]),
            Route(f"{path}/heartbeat", control_route(self._secrets, self._heartbeat, Role.USER, quiet=True), methods=["POST"]),
            Route(f"{path}/exited", control_route(self._secrets, self._exited, Role.USER), methods=["POST"]),
        ]

    async def _show(self, request: Request) -> Response:
        recording = self._of(request)
        return _unknown(request) if recording is None else json_response(recording.opened)

    async def _heartbeat(self, request: Request) -> Response:
        if (recording := self._of(request)) is None:
            return _unknown(request)
        recording.last_sign = time.monotonic()
        return Response(status_code=HTTPStatus.NO_CONTENT)

    async def _exited(self, request: Request) -> Response:
        exited = await decoded(request, _exits)
        if (recording := self._of(request)) is None:
            return _unknown(request)
        if not recording.exited.done():
            recording.exited.set_result(exited)
        return Response(status_code=HTTPStatus.NO_CONTENT)

    def _of(self, request: Request) -> OpenRecording | None:
        recording = self._open.get(request.path_params["session_id"])
        return recording if recording is not None and principal_of(request).sees(recording.team) else None


def _unknown(request: Request) -> Response:
    message = f"session {request.path_params['session_id']} is not recorded here: it has ended, or has not started yet"
    return error_response(HTTPStatus.NOT_FOUND, message, "session_id")
