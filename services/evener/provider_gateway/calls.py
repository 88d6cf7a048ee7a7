"""Serves calls: from the record, from a call in flight, or from a new one that is placed, sampled and committed."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import Final

import structlog

from evener.blobs.port import BlobError
from evener.bus.port import BusError, Fenced
from evener.dialects.canonical import RequestError
from evener.proto.ends import CallFailure, End
from evener.proto.ids import new_call_id
from evener.proto.relay import Admitted, AnyFrame
from evener.proto.sessions import CallUndelivered
from evener.provider_gateway.asked import LOST, OVERLOADED_STATUS, Asked, Failure, answer_of, overloaded, refuse
from evener.provider_gateway.core import (
    STOP_STATUS,
    FromRecord,
    Sample,
    answer_tokens,
    decide,
    exact,
    looping,
    refusal,
    spent,
    target_of,
    unsupported,
)
from evener.provider_gateway.engines import EnginePool, QueueFull
from evener.provider_gateway.live import Flight, Live
from evener.provider_gateway.open_call import OpenCall, Way, failing, opening
from evener.provider_gateway.owner import Owner
from evener.provider_gateway.policies import Policy
from evener.service.faults import point
from evener.service.telemetry import Metrics
from evener.templates.port import TemplateError
from evener.tokens.place import place

PASSING: Final = frozenset({CallFailure.ENGINE_UNREACHABLE, CallFailure.NOT_COMMITTED})
"""Failures that the next try may not meet."""
UNSEEN_TRIES: Final = 8
"""Tries of a request before its harness is told; the relay's pauses between them add up to about ten seconds."""

log = structlog.get_logger()


class Calls:
    """Serves the calls of the partitions that this gateway owns."""

    def __init__(self, pool: EnginePool, policies: Mapping[str, Policy], metrics: Metrics, *, lonely_seconds: float) -> None:
        self._pool = pool
        self._policies = policies
        self._metrics = metrics
        self._lonely_seconds = lonely_seconds

    async def serve(self, owner: Owner, live: Live, start_id: str, asked: Asked) -> AsyncIterator[AnyFrame]:
        """Yield the frames of a request's answer."""
        if (refused := refusal(live.session, start_id)) is not None:
            yield refuse(asked, refused)
            return
        decision = decide(live.session, asked.request_id, in_flight=asked.request_id in live.flights)
        if isinstance(decision, FromRecord):
            yield Admitted(prompt_tokens=decision.opened.prompt_tokens)
            yield answer_of(asked, decision.opened, decision.closed, recorded=True)
            return
        if isinstance(decision, Sample):
            flight = live.flights[asked.request_id] = Flight()
            flight.task = asyncio.create_task(self._fly(owner, live, flight, asked=asked, try_number=decision.try_number))
        async for frame in live.flights[asked.request_id].frames():
            yield frame

    async def left(self, owner: Owner, live: Live, request_id: str) -> None:
        """Note that the harness left: abort the open call, or record that its answer was not delivered."""
        if (flight := live.flights.get(request_id)) is not None and flight.task is not None:
            flight.task.cancel()
            await asyncio.gather(flight.task, return_exceptions=True)
        async with live.ending:  # not between the rows of a seal and the seal
            if live.session.sealed is not None:
                return
            for call in live.session.forest.in_order():
                if call.opened.request_id == request_id and call.answered and call.undelivered is None:
                    undelivered = CallUndelivered(
                        session_id=live.session.session_id,
                        attempt=call.opened.attempt,
                        call_id=call.call_id,
                        request_id=request_id,
                        undelivered_at=time.time(),
                    )
                    await owner.commit(live, [undelivered])

    async def _fly(self, owner: Owner, live: Live, flight: Flight, *, asked: Asked, try_number: int) -> None:
        """Run one call to its end; whatever happens, the listeners get an Answer, or their stream is broken off."""
        lonely = asyncio.create_task(self._abort_when_lonely(flight))
        self._metrics.calls_open.inc()
        try:
            way = self._place(live, asked, try_number)
            await self._queue(owner, live, flight, asked=asked, way=way)
            self._count(live, way.call_id)
        except RequestError as error:
            flight.put(refuse(asked, error, admitted=flight.admitted))
        except Fenced:
            flight.break_off()
        except asyncio.CancelledError:
            flight.put(LOST)
            raise
        except Exception:  # the one place where a call's own crash is caught: its listeners must hear of it
            log.exception("call_crashed", session_id=live.session.session_id, request_id=asked.request_id)
            flight.put(refuse(asked, overloaded("the gateway failed"), admitted=flight.admitted))
        finally:
            lonely.cancel()
            live.flights.pop(asked.request_id, None)
            self._metrics.calls_open.dec()

    async def _queue(self, owner: Owner, live: Live, flight: Flight, *, asked: Asked, way: Way) -> None:
        """Wait for an engine and run the call. One that never gets an engine is our failure, and stands in the log as such."""
        admitted = False
        try:
            async with self._pool.slot(way.target) as (pooled, waited):
                admitted = True
                await self._run(OpenCall(owner, live, flight, asked=asked, way=way, pooled=pooled, waited_seconds=waited))
        except QueueFull as full:
            await self._record_overload(owner, live, asked, way)
            flight.put(refuse(asked, overloaded(str(full)), admitted=flight.admitted))
        except asyncio.CancelledError:
            if not admitted and not flight.broken:
                await self._record_overload(owner, live, asked, way)
            raise

    async def _record_overload(self, owner: Owner, live: Live, asked: Asked, way: Way) -> None:
        opened = opening(live, asked, way, engine_id="")
        failed = failing(opened, CallFailure.OVERLOADED, "no engine was free", OVERLOADED_STATUS)
        try:
            await owner.commit(live, [opened, failed])
        except (BusError, BlobError) as error:
            log.error("overload_not_committed", session_id=live.session.session_id, error=str(error))

    async def _run(self, call: OpenCall) -> None:
        self._warn_of_inexact(call)
        try:
            max_tokens = self._limit(call)
            call.flight.put(Admitted(prompt_tokens=call.opened.prompt_tokens))
            await point("gateway.admitted")
            await call.sample(max_tokens)
            await call.close()
        except Failure as failed:
            await call.fail(failed, again=self._again(call, failed.reason))
        except Fenced:
            raise
        except (BusError, BlobError) as error:
            log.error("call_not_committed", session_id=call.opened.session_id, error=str(error))
            down = Failure(CallFailure.NOT_COMMITTED, overloaded("the log cannot be written; try again"))
            await call.fail(down, again=self._again(call, down.reason))
        except asyncio.CancelledError:
            if not call.flight.broken:
                await call.abort()
            raise
        except Exception as bug:  # recorded as ours, then told as every other crash
            await call.fail(Failure(CallFailure.ENGINE_ERROR, overloaded("the gateway failed"), repr(bug)), again=False)
            log.exception("call_crashed", session_id=call.opened.session_id, call_id=call.opened.call_id)

    def _place(self, live: Live, asked: Asked, try_number: int) -> Way:
        """Return where the call goes and hangs. Raises RequestError."""
        session, request = live.session, asked.request
        start = session.starts[session.attempt]
        target = target_of(start.spec, request.model)
        policy = self._policies.get(target.policy or start.spec.policy)
        if policy is None:
            msg = f"policy {target.policy or start.spec.policy!r} is not known to this gateway"
            raise RequestError(msg, field="model", status=STOP_STATUS)
        if (error := unsupported(request, vision=policy.config.vision)) is not None:
            raise error
        try:
            placed = place(
                session.forest,
                live.history,
                request.messages,
                request.tools,
                renderer=policy.renderer,
                options=policy.config.options,
                quirks=start.quirks,
            )
        except TemplateError as cause:
            raise RequestError(str(cause.args[0]), field="messages", status=STOP_STATUS) from cause
        live.placed += 1
        number = len(session.forest.calls) + live.placed
        return Way(
            target=target, policy=policy, placed=placed, call_id=new_call_id(), number=number, try_number=try_number, opened_at=time.time()
        )

    def _limit(self, call: OpenCall) -> int:
        """Return how many tokens the answer may have. Raises Failure where a budget or the context is spent."""
        session, budgets, request = call.live.session, call.spec.budgets, call.asked.request
        if (end := spent(session, budgets)) is not None:
            error = RequestError(f"this session's budget is spent ({end})", status=STOP_STATUS, kind="budget_spent")
            raise Failure(CallFailure.BUDGET, error, detail=end)
        if looping(request.messages, budgets.repeats):
            error = RequestError("the same tool call gave the same result too often", status=STOP_STATUS, kind="looping")
            raise Failure(CallFailure.BUDGET, error, detail=End.LOOPING)
        length, used = call.pooled.facts.context_length, call.opened.prompt_tokens
        if length - used < 1:
            text = f"this model's maximum context length is {length} tokens; the messages have {used}"
            raise Failure(CallFailure.CONTEXT_OVERFLOW, RequestError(text, field="messages", kind="context_length_exceeded"))
        sampled = sum(one.sampled_tokens for one in session.forest.calls.values() if one.opened.attempt == session.attempt)
        return answer_tokens(call.opened.sampling, request.max_tokens, budgets, sampled=sampled, room=length - used, choices=request.n)

    def _warn_of_inexact(self, call: OpenCall) -> None:
        """Tell the operator once a session that nothing of it can be trained at these settings."""
        sampling, rule = call.opened.sampling, call.pooled.rule
        if not call.live.warned and not exact(rule, sampling):
            call.live.warned = True
            log.warning(
                "tokens_will_be_masked",
                session_id=call.opened.session_id,
                reason="the engine's logprobs are those of temperature 1 without filters, and the run samples otherwise",
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                min_p=sampling.min_p,
            )

    def _again(self, call: OpenCall, reason: CallFailure) -> bool:
        """Return whether the relay shall send the request again, unseen by the harness: an engine or the log may come back."""
        if reason not in PASSING:
            return False
        tries = call.live.lost_tries
        tries[call.asked.request_id] += 1
        return tries[call.asked.request_id] < UNSEEN_TRIES

    async def _abort_when_lonely(self, flight: Flight) -> None:
        loop = asyncio.get_running_loop()
        while flight.alone_for(loop.time()) < self._lonely_seconds:  # noqa: ASYNC110 - a time to pass, not an event
            await asyncio.sleep(self._lonely_seconds / 4)
        if flight.task is not None:
            flight.task.cancel()

    def _count(self, live: Live, call_id: str) -> None:
        known = live.session.forest.calls.get(call_id)
        if known is None:
            return
        self._metrics.placements.labels(known.placement.root or "extended").inc()
        self._metrics.calls_ended.labels("closed" if known.failed is None else known.failed.reason).inc()
        if known.closed is not None:
            self._metrics.call_seconds.labels(known.opened.dialect).observe(known.closed.closed_at - known.opened.opened_at)
            self._metrics.engine_seconds.observe(known.closed.engine_seconds)
            self._metrics.tokens_sampled.labels(known.opened.policy or known.opened.engine_id).inc(known.sampled_tokens)
