"""The gateway's HTTP endpoints: what relays ask, and the tokens' spelling for people."""

import asyncio
import base64
from collections.abc import AsyncGenerator, Mapping
from contextlib import ExitStack, aclosing
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

from evener.bus.port import Bus
from evener.dialects.canonical import CanonicalRequest, Dialect, RequestError
from evener.dialects.registry import dialect_for
from evener.proto.codec import encode_frame
from evener.proto.relay import CAPABILITY, LEFT_PATH, OWNER, REQUEST_ID, SERVE_PREFIX, STARTED, UNSERVED, Answer, AnyFrame, is_marked
from evener.proto.spec import Quirks
from evener.provider_gateway.admission import Ticket
from evener.provider_gateway.asked import OVERLOADED_STATUS, RETRY_AFTER, Asked
from evener.provider_gateway.calls import Calls
from evener.provider_gateway.core import body_digest
from evener.provider_gateway.live import Live
from evener.provider_gateway.owner import Owner
from evener.provider_gateway.owners import Owners
from evener.provider_gateway.policies import Policy
from evener.provider_gateway.threads import READING
from evener.service.auth import Capability, CapabilityRefused, Secrets, open_capability, operator_route

READ_AT_ONCE_BYTES: Final = 32 << 10
"""A larger body is read in a thread."""
GONE_STATUS: Final = 499
"""For nobody: the relay left."""


class PiecesAsked(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ids whose spelling is asked for."""

    policy: str
    ids: tuple[Annotated[int, Meta(ge=0, lt=2**31)], ...]


_asked_pieces: Final = msgspec.json.Decoder(PiecesAsked)


class Patience(Struct, frozen=True, kw_only=True):
    """How long requests wait before they are answered 503; see the configuration."""

    known_seconds: float
    held_seconds: float


class Frames(StreamingResponse):
    """A call's frames as they come, until the relay is gone. The last one leaves in one write with the end of the response."""

    def __init__(self, frames: AsyncGenerator[AnyFrame, None], ticket: Ticket) -> None:
        super().__init__((), media_type="application/octet-stream")
        self._frames = frames
        self._ticket = ticket

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        sending, gone = asyncio.ensure_future(self.stream_response(send)), asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            self._ticket.give_back()  # also where the relay was gone before the call began
            sending.cancel()
            gone.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)

    async def stream_response(self, send: Send) -> None:
        """Send everything."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        more = True
        async with aclosing(self._frames) as frames:
            async for frame in frames:
                more = not isinstance(frame, Answer)
                await send({"type": "http.response.body", "body": encode_frame(frame), "more_body": more})
        if more:  # broken off
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class RawRoute(Route):
    """A route whose path is matched and given as it was sent: an escaped `?` or `/` in the name of a model stays one."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http":
            return Match.NONE, {}
        return super().matches({**scope, "path": scope["raw_path"].decode("latin-1")})


class Endpoints:
    """Routes over the partitions that this gateway owns."""

    def __init__(
        self, bus: Bus, owners: Owners, calls: Calls, policies: Mapping[str, Policy], secrets: Secrets, *, patience: Patience
    ) -> None:
        self._bus = bus
        self._owners = owners
        self._calls = calls
        self._policies = policies
        self._secrets = secrets
        self._patience = patience

    def routes(self) -> list[BaseRoute]:
        """Return the routes to mount."""
        return [
            RawRoute(SERVE_PREFIX + "/{path:path}", self.serve, methods=["POST"]),
            Route(LEFT_PATH, self.left, methods=["POST"]),
            Route("/tokens/pieces", operator_route(self._secrets, self.pieces), methods=["POST"]),
        ]

    async def serve(self, request: Request) -> Response:
        """Answer a harness's request as frames; what is answered without them is for the relay (`evener.proto.relay`)."""
        query = request.scope["query_string"].decode("latin-1")
        path = "/" + request.path_params["path"] + (f"?{query}" if query else "")
        dialect = dialect_for(path)
        if dialect is None:
            return _refused(404, f"no dialect serves {path}")
        found = await self._find(request)
        if isinstance(found, Response):
            return found
        owner, live, capability = found
        ticket = await self._calls.ticket(live, capability.start_id, request.headers[REQUEST_ID], self._patience.held_seconds)
        if ticket is None:
            return _refused(OVERLOADED_STATUS, "engines and queue are full", dict([RETRY_AFTER]))
        with ExitStack() as stack:
            stack.callback(ticket.give_back)
            if self._owners.of(capability.partition) is not owner:  # taken over while the call was held
                return await self._elsewhere(capability.partition)
            try:
                asked = await self._asked(request, dialect, path, live.quirks)
            except RequestError as error:
                return Frames(_only(unread(dialect, error)), ticket)
            except ClientDisconnect:
                return Response(status_code=GONE_STATUS)
            stack.pop_all()
        return Frames(self._calls.serve(owner, live, capability.start_id, asked, ticket), ticket)

    async def left(self, request: Request) -> Response:
        """Take note that a harness left before its answer was through."""
        found = await self._find(request)
        if isinstance(found, Response):
            return found
        owner, live, _ = found
        await self._calls.left(owner, live, request.path_params["request_id"])
        return Response(status_code=204)

    async def pieces(self, request: Request) -> Response:
        """Return the bytes that each id stands for, base64."""
        try:
            asked = _asked_pieces.decode(await request.body())
        except (msgspec.DecodeError, msgspec.ValidationError) as bad:
            return _refused(400, str(bad))
        policy = self._policies.get(asked.policy)
        if policy is None:
            return _refused(404, f"policy {asked.policy!r} is not known here; known: {', '.join(self._policies)}")
        return JSONResponse({"pieces": await asyncio.to_thread(_spelled, policy, asked.ids)})

    async def _asked(self, request: Request, dialect: Dialect, path: str, quirks: Quirks) -> Asked:
        """Read a request. Raises RequestError, and ClientDisconnect where its relay is gone."""
        parsed, digest = await read(dialect, path, await _body(request))
        return Asked(
            request_id=request.headers[REQUEST_ID],
            dialect=dialect,
            request=parsed,
            body_digest=digest,
            started=STARTED in request.headers,
            marked_retry=is_marked(request.headers, quirks.retry_header),
            unserved=request.headers.get(UNSERVED),
            sub_agent=is_marked(request.headers, quirks.sub_agent_header),
        )

    async def _find(self, request: Request) -> tuple[Owner, Live, Capability] | Response:
        """Return the owner and the session that the capability opens, or what to tell the relay."""
        if REQUEST_ID not in request.headers and "request_id" not in request.path_params:
            return _refused(400, f"header {REQUEST_ID} is missing")
        try:
            capability = open_capability(self._secrets, request.headers.get(CAPABILITY, ""))
        except CapabilityRefused as refused:
            return _refused(401, str(refused))
        owner = self._owners.of(capability.partition)
        if owner is None:
            return await self._elsewhere(capability.partition)
        if not await owner.passed(capability.offset, self._patience.known_seconds):
            return _refused(503, "the session's start has not been read yet", {"retry-after": "1"})
        live = owner.lives.get(capability.session_id)
        if live is None and owner.is_sealed(capability.session_id):
            return _refused(410, f"session {capability.session_id} has ended")
        return _refused(404, f"session {capability.session_id} is not known here") if live is None else (owner, live, capability)

    async def _elsewhere(self, partition: int) -> Response:
        address = await self._owners.address_of(partition)
        if address is None:
            return _refused(503, f"nobody owns partition {partition} now", {"retry-after": "1"})
        return Response(status_code=307, headers={OWNER: address})


def unread(dialect: Dialect, error: RequestError) -> Answer:
    """Return what a harness is told whose request could not be read. The relay knows whether the headers of a stream are out."""
    return Answer(status=error.status, body=dialect.error(error), failure=error.reason, detail=error.message)


async def _only(answer: Answer) -> AsyncGenerator[AnyFrame, None]:
    yield answer


async def read(dialect: Dialect, path: str, body: bytes) -> tuple[CanonicalRequest, str]:
    """Return the request in a body, and the digest of it. Raises RequestError. No other call waits for a large one."""
    if len(body) > READ_AT_ONCE_BYTES:
        return await READING.run(_read, dialect, path, body)
    return _read(dialect, path, body)


def _read(dialect: Dialect, path: str, body: bytes) -> tuple[CanonicalRequest, str]:
    request = dialect.parse(path, body)
    return request, body_digest(request)


async def _body(request: Request) -> bytes:
    """Return the body; the request, which lives as long as its answer, does not keep it."""
    return b"".join([part async for part in request.stream()])


def _spelled(policy: Policy, ids: tuple[int, ...]) -> list[str]:
    """Return the bytes of ids, base64. For a thread: a long row has many."""
    return [base64.b64encode(piece).decode() for piece in policy.renderer.pieces(ids)]


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _refused(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "field": None}}, status_code=status, headers=headers)
