"""The relay: the listener that one start of a session sees as its model provider, and the only thing that its key opens."""

import asyncio
import hmac
import re
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from http import HTTPStatus
from typing import Final

import msgspec
import structlog
from aiohttp import web
from msgspec import Struct, field

from evener.dialects.canonical import Dialect, RequestError
from evener.dialects.registry import DIALECTS, dialect_for, models_answer
from evener.proto.ids import new_request_id
from evener.proto.reasons import CallFailure
from evener.proto.sessions import Failures
from evener.runtime.byte_budget import HeldBytes
from evener.sandbox_runner.clock import AgentClock
from evener.sandbox_runner.core import one_line
from evener.sandbox_runner.exchange import JSON, Exchange, HarnessDisconnected, Limits
from evener.sandbox_runner.failed_requests import FailedRequests
from evener.sandbox_runner.gateway_client import GatewayClient, RelayedCall
from evener.sandbox_runner.http_server import MAX_HEADERS_BYTES, TOO_MUCH, HttpServer, headers_bytes
from evener.sandbox_runner.request_body import read_body, read_hints
from evener.service.telemetry import Metrics

KEY_IN_PATH: Final = re.compile(r"^/s/(?P<name>[^/?]+)(?=/)")
"""A name in the base URL: the key, for a harness that sends none of the usual headers. Any other name is ignored."""
KEY_HEADERS: Final = frozenset(dialect.key_header for dialect in DIALECTS)
BEARER: Final = re.compile(r"^bearer +", re.IGNORECASE)
NOT_PASSED_ON: Final = frozenset(
    {
        *KEY_HEADERS,
        *("accept-encoding", "connection", "content-encoding", "content-length", "cookie", "expect", "host"),
        *("keep-alive", "te", "trailer", "transfer-encoding", "upgrade"),
        *("baggage", "traceparent", "tracestate"),
    }
)
"""Headers that belong to the connection, secrets, and the harness's own traces; `x-evener-*` belongs to Evener."""
WRONG_KEY: Final = RequestError("this key opens no session here", status=HTTPStatus.UNAUTHORIZED, kind="authentication_error")
HEADERS_TOO_LONG: Final = RequestError(TOO_MUCH, status=HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
RETRIED_STATUSES: Final = frozenset({HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.BAD_GATEWAY, HTTPStatus.GATEWAY_TIMEOUT})
"""Statuses after which a client sends a request again."""
LATER_REQUESTS: Final = 100
RELAY_CLOSE_SECONDS: Final = 0.2
DISCONNECT_SECONDS: Final = 5.0
MAX_DETAIL: Final = 500
"""The number of characters of an answer that are kept."""
PROVIDER_CALLS: Final = re.compile(
    r"/v1(alpha|beta)?/(?!(traces|metrics|logs)(/|$))"
    r"|/(completions|embeddings|responses|messages|rerank|moderations|images/\w+|audio/\w+)/?$|/api/(chat|generate|embed|embeddings)$|/models/[^/]+:\w+$"
)
"""Paths at which some provider of models serves what agents need, other than telemetry.

A harness can do its work without an answer to its other posts (telemetry, logins).
"""

log = structlog.get_logger()


class Opening(Struct, frozen=True, kw_only=True):
    """The session that the listener of one start serves."""

    session_id: str
    nonce: str
    """The key that the harness holds."""
    capability: str
    """The capability for the gateway, which the harness never sees."""
    partition: int
    models: Sequence[str]
    retry_header: str | None = None
    """The header by which the harness's client marks a transport retry."""
    trace: Mapping[str, str] = {}
    """The headers of the trace context that the calls continue."""
    step: int = 0
    """The number of the task's step that runs, from 1. 0: the task has no steps."""
    listening: socket.socket
    """Where the harness reaches the relay, which closes it."""


class Unserved(Struct):
    """A request that had no answer for a reason that the log may not say."""

    reason: CallFailure
    known_at: float
    """Since when, by the monotonic clock."""
    step: int
    """The step of the task in which it came."""
    later_requests: deque[str] = field(default_factory=lambda: deque(maxlen=LATER_REQUESTS))
    """The ids of requests that came after that, in the same step."""


class Report:
    """What only the relay knows about requests without an answer."""

    def __init__(self) -> None:
        self.step = 0
        """The number of the task's step that runs, from 1. 0: the task has no steps."""
        self.unanswered: Unserved | None = None
        """The last request that was answered with a fault of Evener's."""
        self.left_in_vain: Unserved | None = None
        """The last request that the harness left after it had waited for Evener: no gateway had admitted it, or its engine was paused."""
        self._failures: dict[CallFailure, Failures] = {}

    @property
    def failures(self) -> tuple[Failures, ...]:
        """The errors that the harness got instead of answers, by reason."""
        return tuple(self._failures.values())

    def unlogged(self, reason: CallFailure) -> None:
        """Note that a request got no answer, for a reason that the log may not say."""
        self.unanswered = Unserved(reason, time.monotonic(), self.step)

    def disconnected_in_vain(self) -> None:
        """Note that the harness disconnected from a request for which it had waited."""
        self.left_in_vain = Unserved(CallFailure.OVERLOADED, time.monotonic(), self.step)

    def ended(self, request_id: str, came_at: float) -> None:
        """Note a request of which the log knows the end. An earlier request says nothing about others beside it."""
        for unserved in (self.unanswered, self.left_in_vain):
            if unserved is not None and came_at > unserved.known_at and unserved.step == self.step:
                unserved.later_requests.append(request_id)

    def failed(self, reason: CallFailure, detail: str) -> None:
        """Count a request that got no answer."""
        before = self._failures.get(reason)
        count = 1 if before is None else before.count + 1
        self._failures[reason] = Failures(reason=reason, count=count, detail=one_line(detail, MAX_DETAIL))


@asynccontextmanager
async def open_relay(
    opening: Opening, client: GatewayClient, clock: AgentClock, limits: Limits, *, metrics: Metrics, report: Report
) -> AsyncIterator[str]:
    """Serve the opening's socket; yield the base URL (without `/v1`). Closing ends what is open."""
    relay = Relay(opening, client, clock, limits, metrics=metrics, report=report)
    runner = web.ServerRunner(HttpServer(relay.handle, relay.refuse), shutdown_timeout=RELAY_CLOSE_SECONDS)
    host, port = opening.listening.getsockname()
    with closing(opening.listening):  # the loop must be rid of it before
        try:
            await runner.setup()
            await web.SockSite(runner, opening.listening).start()
            yield f"http://{host}:{port}"
        finally:
            await runner.cleanup()
            await relay.finish()


class Relay:
    """Checks the key, gives each request its id, and hands it to an Exchange."""

    def __init__(
        self, opening: Opening, client: GatewayClient, clock: AgentClock, limits: Limits, *, metrics: Metrics, report: Report
    ) -> None:
        self._opening = opening
        self._report = report
        report.step = opening.step
        self._client = client
        self._clock = clock
        self._limits = limits
        self._bodies = limits.bodies.share()
        self._metrics = metrics
        self._failed_requests = FailedRequests(opening.retry_header)
        self._disconnects: set[asyncio.Task[None]] = set()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer any request of the harness."""
        response = await self._answer(request)
        self._metrics.relay_requests.labels(str(response.status)).inc()
        return response

    def refuse(self, status: HTTPStatus, message: str, /, path: str = "") -> web.Response:
        """Answer a request that never came to `handle`, or that `handle` failed to answer. Whose it was is not known: it counts."""
        self._report.failed(CallFailure.REFUSED, message)
        self._metrics.relay_requests.labels(str(status.value)).inc()
        if (dialect := dialect_for(KEY_IN_PATH.sub("", path))) is not None:
            return _refusal(dialect, RequestError(message, status=status))
        return _error(status, message, "invalid_request_error" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "api_error")

    async def finish(self) -> None:
        """Wait a while for the notes to gateways that the harness disconnected."""
        if self._disconnects:
            await asyncio.wait(self._disconnects, timeout=DISCONNECT_SECONDS)
        for task in self._disconnects:
            task.cancel()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        prefix = KEY_IN_PATH.match(request.path_qs)
        path = request.path_qs[prefix.end() :] if prefix else request.path_qs
        dialect = dialect_for(path) if request.method == "POST" else None
        name = prefix["name"] if prefix else ""
        if dialect is None:
            return self._other(request, path.partition("?")[0], name)
        if not self._is_key(request, name):  # an orphan of another session leaves no trace
            return _refusal(dialect, WRONG_KEY)
        headers = headers_bytes(request)
        if headers > MAX_HEADERS_BYTES:
            return self._unread(dialect, HEADERS_TOO_LONG)
        held = self._bodies.hold()
        try:
            try:
                body = await read_body(request, self._limits, lambda size: self._hold(held, size + headers))
            except RequestError as error:
                return self._unread(dialect, error)
            held.shrink(len(body) + headers)
            return await self._exchange(request, self._call(request, path, body), dialect)
        finally:
            held.release()

    async def _hold(self, held: HeldBytes, size: int) -> None:
        """Wait until a request may hold so many bytes; it is not the agent's time. Raises RequestError."""
        began = time.monotonic()
        self._clock.begin(held)
        try:
            async with asyncio.timeout(self._limits.admission_seconds):
                await held.grow(size)
        except TimeoutError:
            message, status = "the requests that are open hold too much memory; try again", HTTPStatus.SERVICE_UNAVAILABLE
            raise RequestError(message, status=status, kind="overloaded_error", reason=CallFailure.OVERLOADED) from None
        except asyncio.CancelledError:
            if time.monotonic() - began > self._limits.in_vain_seconds:
                self._report.disconnected_in_vain()
            raise
        finally:
            self._clock.end(held)

    def _unread(self, dialect: Dialect, error: RequestError) -> web.Response:
        """Refuse a request whose body was not read to its end."""
        self._report.failed(error.reason, error.message)
        if error.reason in {CallFailure.CONTEXT_OVERFLOW, CallFailure.OVERLOADED}:
            self._report.unlogged(error.reason)
        refusal = _refusal(dialect, error)
        refusal.force_close()
        return refusal

    async def _exchange(self, request: web.BaseRequest, call: RelayedCall, dialect: Dialect) -> web.StreamResponse:
        hints = await read_hints(dialect, call.path, call.body)
        exchange = Exchange(request, call, dialect, client=self._client, hints=hints, clock=self._clock, limits=self._limits)
        digest = await self._failed_requests.digest(call)
        call.repeats = self._failed_requests.original(call, digest)
        try:
            response = await exchange.run()
        except (asyncio.CancelledError, HarnessDisconnected) as disconnected:
            exchange.gave_up = True
            if isinstance(disconnected, asyncio.CancelledError):
                raise
            return web.Response(status=499)
        else:
            if response.status in RETRIED_STATUSES:
                self._failed_requests.note(call, digest)
            return response
        finally:
            self._metrics.relay_sent_again.inc(exchange.sent_again)
            self._note(call, exchange)
            if exchange.gave_up:
                self._tell_disconnect(call)

    def _note(self, call: RelayedCall, exchange: Exchange) -> None:
        if exchange.failure is not None:
            self._report.failed(exchange.failure, exchange.detail)
        if exchange.unlogged:
            self._report.unlogged(CallFailure.OVERLOADED)
        elif exchange.gave_up and exchange.waited_in_vain():
            self._report.disconnected_in_vain()
        else:
            self._report.ended(call.request_id, exchange.came_at)

    def _tell_disconnect(self, call: RelayedCall) -> None:
        log.info("harness_disconnected", session_id=self._opening.session_id, request_id=call.request_id)
        task = asyncio.create_task(self._client.disconnect(call))
        self._disconnects.add(task)
        task.add_done_callback(self._disconnects.discard)

    def _call(self, request: web.BaseRequest, path: str, body: bytes) -> RelayedCall:
        passed = {name.lower(): value for name, value in request.headers.items()}
        return RelayedCall(
            path=path,
            body=body,
            headers={name: value for name, value in passed.items() if _is_passed_on(name)},
            request_id=new_request_id(),
            capability=self._opening.capability,
            partition=self._opening.partition,
            step=self._opening.step,
            trace=self._opening.trace,
        )

    def _is_key(self, request: web.BaseRequest, name: str) -> bool:
        """Return whether a header or the name in the base URL is the key."""
        given = [name, *(BEARER.sub("", request.headers.get(header, "")).strip() for header in KEY_HEADERS)]
        return any(hmac.compare_digest(key.encode(errors="surrogateescape"), self._opening.nonce.encode()) for key in given)

    def _other(self, request: web.BaseRequest, path: str, name: str) -> web.Response:
        """Answer a request that is not a model call: the list of models, a sign of life, or an error."""
        if request.method in {"GET", "HEAD"}:
            if (models := models_answer(path, request.headers, self._opening.models)) is not None:
                return web.Response(body=models, content_type=JSON)
            if request.headers.get("upgrade", "").lower() == "websocket":  # its client falls back to POST at once
                return _error(HTTPStatus.UPGRADE_REQUIRED, "websockets are not served; POST instead", "not_found_error")
        if request.method == "HEAD" and path == "/api/hello":
            return web.Response()
        message = f"{request.method} {path} is not served; these are: POST {', '.join(dialect.endpoint for dialect in DIALECTS)}"
        if request.method == "POST" and PROVIDER_CALLS.search(path) and self._is_key(request, name):
            self._report.failed(CallFailure.REFUSED, message)
        return _error(HTTPStatus.NOT_FOUND, message, "not_found_error")


def _is_passed_on(name: str) -> bool:
    return name not in NOT_PASSED_ON and not name.startswith("x-evener-")


def _refusal(dialect: Dialect, error: RequestError) -> web.Response:
    return web.Response(status=error.status, body=dialect.error(error), content_type=JSON)


def _error(status: HTTPStatus, message: str, kind: str) -> web.Response:
    body = {"error": {"message": message, "type": kind, "code": None}}
    return web.Response(status=status, body=msgspec.json.encode(body), content_type=JSON)
