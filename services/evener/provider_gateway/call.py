"""The task of a call: it takes the call from placement to commit, and one place in it decides what happens to errors."""

import asyncio
import time
from contextlib import ExitStack, suppress

import structlog
from msgspec import Struct
from msgspec.structs import replace
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, StatusCode
from structlog.contextvars import bind_contextvars

from evener.blobs.port import BlobError
from evener.bus.port import BusError, Fenced
from evener.dialects.canonical import NOTHING_STREAMED, Overflow, RequestError
from evener.proto.codec import AnyEvent
from evener.proto.errors import EvenerError
from evener.proto.reasons import CallFailure
from evener.proto.relay import Admitted, Waiting
from evener.proto.sessions import CallClosed, CallFailed, CallOpened
from evener.provider_gateway import records
from evener.provider_gateway.core import STOP_STATUS, ParsedRequest, Sample, answer_tokens, too_long, unsupported
from evener.provider_gateway.engine_handle import PAUSE_POLL_SECONDS, EngineHandle, Silence
from evener.provider_gateway.engine_scheduler import AdmissionPermit, EngineScheduler
from evener.provider_gateway.failures import OVERLOADED_STATUS, call_error, outcome, overloaded
from evener.provider_gateway.inflight import Answered, InflightCall, SendAgain
from evener.provider_gateway.partition import Partition
from evener.provider_gateway.placement import PlacedCall, Placer
from evener.provider_gateway.sampling import CallSampling
from evener.provider_gateway.session import SessionRuntime
from evener.provider_gateway.timings import GatewayTimings
from evener.runtime.faults import point
from evener.service.telemetry import Metrics
from evener.service.tracing import nanoseconds, step

log = structlog.get_logger()
tracer = trace.get_tracer("evener.provider_gateway")


class CallServices(Struct, frozen=True, kw_only=True, eq=False):
    """What all calls of a gateway share."""

    engines: EngineScheduler
    placer: Placer
    metrics: Metrics
    timings: GatewayTimings
    disconnect_grace_seconds: float
    transparent_retry_seconds: float


class CallRun:
    """What answers one call in flight."""

    def __init__(
        self,
        services: CallServices,
        partition: Partition,
        session: SessionRuntime,
        request: ParsedRequest,
        *,
        sample: Sample,
        permit: AdmissionPermit,
    ) -> None:
        self.call = InflightCall(request.request_id, request.body_digest, services.disconnect_grace_seconds)
        self._services = services
        self._partition = partition
        self._session = session
        self._request = request
        self._sample = sample
        self._permit = permit
        self._opened: CallOpened | None = None
        """The opening of the call, as far as it is known. None: the call is being placed."""
        self._sampling: CallSampling | None = None
        """The sampling. None: the call has no engine yet."""
        session.calls[request.request_id] = self.call
        self.call.begin(self._run()).add_done_callback(self._land)

    async def _run(self) -> None:
        """Run the call to its end."""
        bind_contextvars(session_id=self._session.session_id)
        attributes = {"evener.session.id": self._session.session_id, "evener.request.id": self._request.request_id}
        with (
            ExitStack() as budgeted,
            self._services.metrics.calls_open.track_inprogress(),
            tracer.start_as_current_span(
                "call",
                context=self._request.trace,
                kind=SpanKind.SERVER,
                attributes=attributes,
                start_time=nanoseconds(self._permit.asked_at),
            ) as span,
        ):
            span.add_event("admitted", timestamp=nanoseconds(self._permit.issued_at))
            try:
                await self._answer(budgeted)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - a bug is told and recorded too
                self.call.recording = True
                span.set_status(StatusCode.ERROR, f"{type(error).__name__}: {error}")
                await self._fail(error)
            self._count(span)
        with suppress(BusError):  # the relay says it again
            await self._partition.note_undelivered(self._session, self.call.disconnected)

    async def _answer(self, budgeted: ExitStack) -> None:
        """Place, sample and commit the call, then release the answer. The call counts to its session's budgets while `budgeted` is open."""
        session, services, request = self._session, self._services, self._request
        with step(tracer, "placement"):
            placed = await services.placer.place(session, request, self._sample)
        opened = self._opened = placed.opened
        extends = opened.placement.parent is not None
        budgeted.enter_context(session.budget.reserve(opened.call_id, extends=extends, answers=opened.n, looping=placed.looping))
        async with services.engines.slots(placed.target, session.session_id, self._permit) as slots:
            opened = self._opened = replace(opened, engine_id=slots.engine.joined.engine_id)
            self._warn_of_inexact(slots.engine)
            limit = answer_limit(placed, slots.engine, session.budget.share(opened.call_id))
            opened = self._opened = replace(opened, max_tokens=limit)
            self.call.has_engine = True
            sampling = self._sampling = CallSampling(
                session=session,
                placed=placed,
                opened=opened,
                slots=slots,
                call=self.call,
                max_tokens=limit,
                timings=services.timings,
                silence=Silence(self.call.put, services.timings.silence),
            )
            self.call.put(Admitted(prompt_tokens=opened.prompt_tokens))
            await point("gateway.admitted")
            with step(tracer, "engine", SpanKind.CLIENT):
                await sampling.run(self._partition.writer)
        self.call.recording = True
        closed = await sampling.closed()
        with step(tracer, "commit"):
            await self._commit(opened, closed)
        await point("gateway.committed")
        self.call.put(Answered(opened=opened, closed=closed, streamed=self.call.streamed))

    async def _commit(self, opened: CallOpened, closed: CallClosed) -> None:
        """Commit the call with its answer.

        A commit that takes longer than a moment is not the agent's time: relays learn of it as it passes.
        """
        loop = asyncio.get_running_loop()
        told, committed = loop.time(), self._partition.writer.commit(self._session, [opened, closed])
        while not (await asyncio.wait([committed], timeout=PAUSE_POLL_SECONDS))[0]:
            self.call.put(Waiting(seconds=loop.time() - told))
            told = loop.time()
        committed.result()

    async def _fail(self, error: BaseException) -> None:
        """Record why there is no answer, then tell the harness in its dialect, or only the relay. All errors of the task end here.

        The log comes first: while it cannot be written, nothing else is sent. A bug met while the end is recorded is recorded instead.
        """
        try:
            try:
                told = await self._record_end(error)
            except (BusError, BlobError):
                raise
            except Exception as bug:  # noqa: BLE001 - a bug is told and recorded too
                error = bug
                told = await self._record_end(bug)
        except Fenced:
            self.call.break_off()
            return
        except Exception as unrecorded:  # noqa: BLE001 - an end that cannot be recorded is still answered
            if isinstance(error, Exception):
                error, told = unrecorded, self._told(unrecorded)[0]
            else:
                told = None
        if told is None or not isinstance(error, Exception):
            return
        patience_seconds, answer_seen = self._services.transparent_retry_seconds, self.call.streamed != NOTHING_STREAMED
        request_id = self._request.request_id
        end = outcome(error, told, self._session, request_id, answer_seen=answer_seen, patience_seconds=patience_seconds)
        if self._sampling is not None and isinstance(end, SendAgain):  # the sampling of a failed try is not the agent's time
            self.call.put(Waiting(seconds=time.time() - self._sampling.began))
        self.call.put(end)

    async def _record_end(self, error: BaseException) -> RequestError | None:
        """Record an end without an answer; return the answer to the harness. None: nobody waits. Raises Fenced."""
        if isinstance(error, Fenced):
            raise error
        if self.call.broken_off:
            await self._leave_tokens()
            return None
        if not isinstance(error, Exception):
            await self._abort()
            return None
        told, detail = self._told(error)
        if self._opened is None and not isinstance(error, EvenerError):  # a bug has a call in the log too
            self._opened = self._services.placer.opened_nowhere(self._session, self._request, self._sample)
        if self._opened is not None:
            tokens = 0 if self._sampling is None else self._sampling.tokens
            await self._record(self._opened, records.failed(self._opened, told.reason, detail, told.status, tokens))
        return told

    async def _leave_tokens(self) -> None:
        """Record the number of tokens that were sampled before the partition was let go: the next owner cannot know it."""
        if self._opened is not None and self._sampling is not None and (tokens := self._sampling.tokens):
            detail = "its gateway let the partition go"
            await self._record(self._opened, records.failed(self._opened, CallFailure.OWNER_LOST, detail, OVERLOADED_STATUS, tokens))

    def _told(self, error: Exception) -> tuple[RequestError, str]:
        return call_error(error, self._session.session_id, self._request.request_id, self._request.dialect)

    async def _abort(self) -> None:
        """Record the sampled tokens as aborted, or that there were none, because the harness disconnected or the attempt is over."""
        opened, sampling = self._opened, self._sampling
        if opened is None:
            return
        if (fault := self._kept_waiting(opened, sampling)) is not None:
            await self._record(opened, records.failed(opened, fault.reason, fault.message, fault.status))
            return
        tokens = 0 if sampling is None else sampling.tokens
        failed = records.failed(opened, CallFailure.CANCELLED, "the harness disconnected", STOP_STATUS, tokens)
        await self._record(opened, failed, await sampling.closed(aborted=True) if sampling is not None and tokens else None)

    def _kept_waiting(self, opened: CallOpened, sampling: CallSampling | None) -> RequestError | None:
        """Return why Evener kept a harness waiting that left without a token. A request waits for an engine from its first try on."""
        if sampling is not None:
            silent = sampling.silence.is_long and not sampling.tokens
            return overloaded("the engine says nothing", CallFailure.ENGINE_UNREACHABLE) if silent else None
        waited = opened.try_number > 1 or time.time() - self._permit.asked_at > self._services.timings.in_vain
        return overloaded("no engine was free") if waited else None

    async def _record(self, opened: CallOpened, failed: CallFailed, closed: CallClosed | None = None) -> None:
        """Commit an end without an answer. Until the log takes the tokens of failed tries, the session owes them to the accounting."""
        if self._sampling is not None and self._sampling.opening is not None:
            await asyncio.wait([self._sampling.opening])
        owed: list[AnyEvent] = [opened, failed] if failed.sampled_tokens else []
        await self._partition.writer.commit(self._session, [opened, closed or failed], owed=owed)

    def _land(self, _: asyncio.Task[None]) -> None:
        """Remove the ended call. If it was cancelled before it began, or has no outcome, only the relay is told."""
        for request_id in self.call.requests:
            self._session.calls.pop(request_id, None)
        if not self.call.broken_off:
            self.call.put(SendAgain())
        self._partition.landed.note()

    def _warn_of_inexact(self, engine: EngineHandle) -> None:
        """Warn the operator once per session that none of its tokens can be trained with these settings."""
        sampling = self._session.started.spec.sampling
        if not self._session.warned and not engine.rule.exact_for(sampling):
            self._session.warned = True
            log.warning(
                "tokens_will_be_masked",
                session_id=self._session.session_id,
                reason="the engine's logprobs are those of temperature 1 without filters, and the run samples otherwise",
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                min_p=sampling.min_p,
            )

    def _count(self, span: Span) -> None:
        metrics, opened = self._services.metrics, self._opened
        known = None if opened is None else self._session.log.forest.calls.get(opened.call_id)
        if known is None:
            return
        metrics.placements.labels(known.placement.root or "extended").inc()
        metrics.calls_ended.labels("closed" if known.failed is None else known.failed.reason).inc()
        metrics.tokens_sampled.labels(known.opened.policy or known.opened.engine_id).inc(known.sampled_tokens)
        if known.closed is not None:
            metrics.call_seconds.labels(known.opened.dialect).observe(known.closed.closed_at - known.opened.opened_at)
            metrics.engine_seconds.observe(known.closed.engine_seconds)
            metrics.answers_continued.inc(sum(len(choice.continued_at) for choice in known.choices))
        span.set_attributes(
            {
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": "evener",
                "gen_ai.request.model": self._request.canonical.model,
                "gen_ai.usage.input_tokens": known.opened.prompt_tokens,
                "gen_ai.usage.output_tokens": known.sampled_tokens,
                "evener.call.id": known.call_id,
                "evener.dialect": known.opened.dialect,
                "evener.engine.id": known.opened.engine_id,
                "evener.placement": known.placement.root or "extended",
            }
        )
        if known.failed is not None:
            span.set_attribute("error.type", known.failed.reason)


def answer_limit(placed: PlacedCall, engine: EngineHandle, share: int | None) -> int:
    """Return the limit of each answer's tokens at this engine. `share` is its share of the session's budget. Raises RequestError."""
    canonical, facts, used = placed.request.canonical, engine.facts, len(placed.tokens.context)
    if (error := unsupported(canonical, "the engine of this policy", vision=facts.vision)) is not None:
        raise error
    policy = placed.spec.policy
    if (differs := engine.unfit.get(policy)) is not None:
        message = f"engine {engine.joined.engine_id} cannot serve a run of policy {policy}: {differs}"
        raise RequestError(message, field="model", status=STOP_STATUS)
    room = facts.context_length - used
    if room < 1:
        message = f"this model's maximum context length is {facts.context_length} tokens; the messages have {used}"
        overflow = Overflow(asked=used, limit=facts.context_length)
        raise too_long(placed.request.dialect, message, overflow)
    tokens = answer_tokens(placed.spec.sampling, canonical.max_tokens, room)
    return tokens if share is None else min(tokens, share)
