"""The gateway's HTTP endpoints: those that relays use, and for people the bytes of tokens and the checked engines."""

import asyncio
import base64
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import ExitStack, aclosing
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct
from opentelemetry.propagate import extract
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

from evener.client.views import ServedEngine, ServedEngines
from evener.dialects.canonical import CanonicalRequest, Dialect, RequestError
from evener.dialects.registry import dialect_for
from evener.proto.codec import encode_frame
from evener.proto.relay import (
    CAPABILITY,
    DISCONNECT_PATH,
    MOVING,
    OWNER,
    REPEATS,
    REQUEST_ID,
    SERVE_PREFIX,
    STARTED,
    STEP,
    Answer,
    AnyFrame,
    is_marked,
    marks_of,
)
from evener.proto.spec import Quirks
from evener.provider_gateway.answers import Answerer, error_answer
from evener.provider_gateway.core import ParsedRequest, body_digest, is_kept
from evener.provider_gateway.engine_handle import EngineHandle
from evener.provider_gateway.engine_scheduler import AdmissionPermit
from evener.provider_gateway.failures import OVERLOADED_STATUS, RETRY_AFTER, call_error
from evener.provider_gateway.partition import Partition
from evener.provider_gateway.partitions import OwnedPartitions
from evener.provider_gateway.policies import Policy
from evener.provider_gateway.session import SessionRuntime
from evener.provider_gateway.threads import READING
from evener.runtime.byte_budget import ByteShare, HeldBytes
from evener.runtime.faults import point_in_thread
from evener.runtime.interrupt import Interrupt
from evener.service.auth import Capability, CapabilityRefused, Secrets, control_route, open_capability
from evener.service.http import decoded, json_response
from evener.service.principals import Role

TRACEPARENT: Final = "traceparent"
READ_AT_ONCE_BYTES: Final = 64 << 10
"""A larger body is read in a thread. The worst of these takes 16 ms."""
DISCONNECTED_STATUS: Final = 499
"""The status of an answer that nobody gets, because the relay disconnected."""


class PiecesAsked(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ids whose bytes are requested."""

    policy: str
    ids: tuple[Annotated[int, Meta(ge=0, lt=2**31)], ...]


_asked_pieces: Final = msgspec.json.Decoder(PiecesAsked)


class CallResponse(Response):
    """A call's frames as they come, until the relay disconnects. The last frame leaves in one write with the end of the response."""

    media_type = "application/octet-stream"

    def __init__(self, frames: AsyncGenerator[AnyFrame, None], permit: AdmissionPermit, held: HeldBytes) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._frames = frames
        self._permit = permit
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        disconnected = Interrupt()
        watching = asyncio.create_task(_watch(receive, disconnected))
        try:
            with disconnected:
                await self._send_frames(send)
        except ClientDisconnect:
            pass
        finally:
            self._permit.release()  # also where the relay disconnected before the call began
            self._held.release()
            watching.cancel()

    async def _send_frames(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        more = True
        async with aclosing(self._frames) as frames:
            async for frame in frames:
                more = not isinstance(frame, Answer)
                await send({"type": "http.response.body", "body": encode_frame(frame), "more_body": more})
        if more:  # broken off
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class RawRoute(Route):
    """A route whose path is matched as it was sent, so that an escaped `?` or `/` in a model's name stays escaped."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http":
            return Match.NONE, {}
        return super().matches({**scope, "path": scope["raw_path"].decode("latin-1")})


class Endpoints(Struct, frozen=True, kw_only=True, eq=False):
    """Routes over the partitions that this gateway owns."""

    partitions: OwnedPartitions
    answerer: Answerer
    policies: Mapping[str, Policy]
    engines: Mapping[str, EngineHandle]
    """The checked engines by id."""
    secrets: Secrets
    session_lookup_timeout_seconds: float
    admission_timeout_seconds: float
    bodies: ByteShare
    """The bytes of bodies that all calls of the gateway may hold together."""

    def routes(self) -> list[BaseRoute]:
        """Return the routes to mount."""
        return [
            RawRoute(SERVE_PREFIX + "/{path:path}", self.serve, methods=["POST"]),
            Route(DISCONNECT_PATH, self.disconnect, methods=["POST"]),
            Route("/tokens/pieces", control_route(self.secrets, self.pieces, Role.VIEWER, quiet=True), methods=["POST"]),
            Route("/engines", control_route(self.secrets, self.served_engines, Role.VIEWER), methods=["GET"]),
        ]

    async def serve(self, request: Request) -> Response:
        """Answer a harness's request with frames. An answer without frames is for the relay (`evener.proto.relay`)."""
        query = request.scope["query_string"].decode("latin-1")
        path = "/" + request.path_params["path"] + (f"?{query}" if query else "")
        dialect = dialect_for(path)
        if dialect is None:
            return _refused(404, f"no dialect serves {path}")
        found: tuple[Partition, SessionRuntime, Capability] | Response | None = None
        try:
            found = await self._find(request)
            return found if isinstance(found, Response) else await self._serve(dialect, path, request, found)
        except ClientDisconnect:
            return Response(status_code=DISCONNECTED_STATUS)
        except Exception as error:  # noqa: BLE001 - a bug is answered too
            session_id = found[1].session_id if isinstance(found, tuple) else ""
            return _unread(dialect, call_error(error, session_id, request.headers.get(REQUEST_ID, ""), dialect)[0])

    async def _serve(self, dialect: Dialect, path: str, request: Request, found: tuple[Partition, SessionRuntime, Capability]) -> Response:
        """Admit, read and answer a request. Raises RequestError, ClientDisconnect, and any bug, before the first frame."""
        partition, session, capability = found
        if (away := self._away(partition, session, request)) is not None:
            return away
        permit = await self.answerer.admit(session, capability.start_id, request.headers[REQUEST_ID], self.admission_timeout_seconds)
        if permit is None:
            return _refused(OVERLOADED_STATUS, "engines and queue are full", dict([RETRY_AFTER]))
        with ExitStack() as stack:
            stack.callback(permit.release)
            if (away := self._away(partition, session, request)) is not None:  # while the call was held
                return away
            held = await self._room(request)
            if isinstance(held, Response):
                return held
            stack.callback(held.release)
            parts = [part async for part in request.stream()]  # the request, which lives as long as its answer, keeps no body
            parsed = await read_request(dialect, path, parts, request.headers, session.quirks)
            if (away := self._away(partition, session, request)) is not None:  # while it was read
                return away
            frames = self.answerer.serve(partition, session, capability.start_id, parsed, permit)
            stack.pop_all()
        return CallResponse(frames, permit, held)

    async def _room(self, request: Request) -> HeldBytes | Response:
        """Wait until the body may be read. Return what counts its bytes, or the response for a body that is not read."""
        size = request.headers.get("content-length")
        if size is None:
            return _refused(411, "the length of the body must be known before it is read")
        try:
            async with asyncio.timeout(self.admission_timeout_seconds):
                return await self.bodies.take(int(size))
        except TimeoutError:
            return _refused(OVERLOADED_STATUS, "the calls that are open hold too much memory", dict([RETRY_AFTER]))

    async def disconnect(self, request: Request) -> Response:
        """Note that a harness disconnected before its answer was delivered."""
        found = await self._find(request)
        if isinstance(found, Response):
            return found
        partition, session, _ = found
        await self.answerer.disconnect(partition, session, request.path_params["request_id"])
        return Response(status_code=204)

    async def pieces(self, request: Request) -> Response:
        """Return the bytes of each id, in base64."""
        asked = await decoded(request, _asked_pieces)
        policy = self.policies.get(asked.policy)
        if policy is None:
            return _refused(404, f"policy {asked.policy!r} is not known here; known: {', '.join(self.policies)}")
        return await asyncio.to_thread(_spelled, policy, asked.ids)

    async def served_engines(self, _request: Request) -> Response:
        """Return the checked engines, so that a submission can warn of settings that they do not support."""
        return json_response(ServedEngines(engines=tuple(self._view(engine) for _, engine in sorted(self.engines.items()))))

    def _view(self, engine: EngineHandle) -> ServedEngine:
        policy = self.policies.get(engine.joined.policy or "")
        return ServedEngine(
            engine_id=engine.joined.engine_id,
            policy=engine.joined.policy,
            context_length=engine.facts.context_length,
            any_temperature=engine.rule.any_temperature,
            filters=engine.rule.filters,
            renders_tools=policy is None or policy.renderer.renders_tools,
        )

    async def _find(self, request: Request) -> tuple[Partition, SessionRuntime, Capability] | Response:
        """Return the partition and the session that the capability opens, or the response for the relay."""
        if REQUEST_ID not in request.headers and "request_id" not in request.path_params:
            return _refused(400, f"header {REQUEST_ID} is missing")
        try:
            capability = open_capability(self.secrets, request.headers.get(CAPABILITY, ""))
        except CapabilityRefused as refused:
            return _refused(401, str(refused))
        partition = self.partitions.held.get(capability.partition)
        if partition is None:
            return self._elsewhere(capability.partition)
        if not await partition.passed(capability.offset, self.session_lookup_timeout_seconds):
            return _refused(503, "the session's start has not been read yet", {"retry-after": "1"})
        session = partition.sessions.get(capability.session_id)
        if session is not None and session.sealing and not session.log.accepts(capability.start_id):
            return _refused(503, "the session's seal is being written", {"retry-after": "1"})
        if session is not None:
            return partition, session, capability
        if partition.is_sealed(capability.session_id):
            return _refused(410, f"session {capability.session_id} has ended")
        return _refused(404, f"session {capability.session_id} is not known here")

    def _away(self, partition: Partition, session: SessionRuntime, request: Request) -> Response | None:
        """Return the response for a request that is not served here: its partition is lost, or handed over, so that no call begins."""
        number = partition.number
        if self.partitions.held.get(number) is not partition:
            return self._elsewhere(number)
        if not partition.releasing or is_kept(session.log, request.headers[REQUEST_ID], session.calls):
            return None
        return _moving(f"partition {number} is being handed over")

    def _elsewhere(self, partition: int) -> Response:
        address = self.partitions.address_of(partition)
        if address is None:
            return _moving(f"nobody owns partition {partition} now")
        return Response(status_code=307, headers={OWNER: address})


def _unread(dialect: Dialect, error: RequestError) -> Response:
    """Return the one frame for a request of which no call began. The relay knows whether the headers of a stream have left."""
    return Response(encode_frame(error_answer(error, dialect.error(error))), media_type=CallResponse.media_type)


def _spelled(policy: Policy, ids: tuple[int, ...]) -> Response:
    """Return the answer with the bytes of ids in base64. Call it in a thread: a long row has many."""
    return json_response({"pieces": [base64.b64encode(piece).decode() for piece in policy.renderer.pieces(ids)]})


async def _watch(receive: Receive, disconnected: Interrupt) -> None:
    """End the sending when the relay disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
    disconnected.end(ClientDisconnect())


def _moving(message: str) -> Response:
    """Return the answer for a request whose partition is on its way to another gateway."""
    return _refused(503, message, {"retry-after": "1", MOVING: "1"})


def _refused(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "field": None}}, status_code=status, headers=headers)


async def read_request(dialect: Dialect, path: str, parts: Sequence[bytes], headers: Mapping[str, str], quirks: Quirks) -> ParsedRequest:
    """Return the request in a body that came in parts. Raises RequestError. A large body is joined and parsed in a thread."""
    if sum(map(len, parts)) > READ_AT_ONCE_BYTES:
        parsed, digest = await READING.run(_read, dialect, path, parts)
    else:
        parsed, digest = _read(dialect, path, parts)
    return ParsedRequest(
        request_id=headers[REQUEST_ID],
        dialect=dialect,
        canonical=parsed,
        body_digest=digest,
        started=STARTED in headers,
        marked_retry=is_marked(headers, quirks.retry_header),
        repeats=headers.get(REPEATS),
        sub_agent=is_marked(headers, quirks.sub_agent_header),
        step=int(headers.get(STEP, "0")),
        marks=marks_of(headers),
        trace=extract(headers) if TRACEPARENT in headers else None,
    )


def _read(dialect: Dialect, path: str, parts: Sequence[bytes]) -> tuple[CanonicalRequest, str]:
    point_in_thread("gateway.reading")
    parsed = dialect.parse(path, b"".join(parts))
    return parsed, body_digest(parsed)
