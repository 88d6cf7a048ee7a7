"""Serves calls: from the record, from a call in flight, or from a new one that is placed, sampled and committed."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping
from typing import Final

import structlog

from evener.blobs.port import BlobError, Blobs
from evener.bus.port import BusError, Fenced
from evener.dialects.canonical import NOTHING, RequestError
from evener.proto.ends import CallFailure
from evener.proto.relay import Admitted, Answer, AnyFrame
from evener.provider_gateway.answering import flight_frames, recorded_frames
from evener.provider_gateway.asked import OVERLOADED_STATUS, Asked, Failure, overloaded, refuse
from evener.provider_gateway.core import FromRecord, Sample, decide, exact, refusal
from evener.provider_gateway.engines import EnginePool, QueueFull
from evener.provider_gateway.limits import limit
from evener.provider_gateway.live import Flight, Live
from evener.provider_gateway.open_call import OpenCall, Way, failing, opening, undelivered
from evener.provider_gateway.owner import Owner
from evener.provider_gateway.placing import Placing
from evener.provider_gateway.policies import Policy
from evener.service.faults import point
from evener.service.telemetry import Metrics

PASSING: Final = frozenset({CallFailure.ENGINE_UNREACHABLE, CallFailure.NOT_COMMITTED})
"""Failures that the next try may not meet."""
UNSEEN_TRIES: Final = 8
"""Tries of a request before its harness is told; the relay's pauses between them add up to about ten seconds."""

log = structlog.get_logger()


class Calls:
    """Serves the calls of the partitions that this gateway owns."""

    def __init__(self, pool: EnginePool, policies: Mapping[str, Policy], blobs: Blobs, metrics: Metrics, *, lonely_seconds: float) -> None:
        self._pool = pool
        self._placing = Placing(policies, blobs)
        self._metrics = metrics
        self._lonely_seconds = lonely_seconds

    async def serve(self, owner: Owner, live: Live, start_id: str, asked: Asked) -> AsyncGenerator[AnyFrame, None]:
        """Yield the frames of a request's answer."""
        if (refused := refusal(live.session, start_id)) is not None:
            yield refuse(asked, refused)
            return
        if asked.request.count_only:
            yield self._count_prompt(live, asked)
            return
        decision = decide(live.session, asked, live.flights)
        if isinstance(decision, FromRecord):
            async for frame in recorded_frames(owner, live, decision.call, asked):
                yield frame
            return
        if isinstance(decision, Sample):
            flight = live.flights[asked.request_id] = Flight(asked.request_id, asked.body_digest)
            flight.task = asyncio.create_task(self._fly(owner, live, flight, asked=asked, sample=decision))
            flight.task.add_done_callback(lambda _: live.land(flight))
        else:
            flight = live.flights[asked.request_id] = live.flights[decision.request_id]
            flight.requests.add(asked.request_id)
        async for frame in flight_frames(owner, live, flight, asked):
            yield frame

    async def left(self, owner: Owner, live: Live, request_id: str) -> None:
        """Note that the harness left: abort the open call unless a retry waits for it, or record that its answer was not received."""
        if (flight := live.flights.get(request_id)) is not None and flight.task is not None:
            flight.left.add(request_id)
            if not flight.requests <= flight.left:
                return  # told when the call has ended
            flight.task.cancel()
            await asyncio.gather(flight.task, return_exceptions=True)
        await _note_undelivered(owner, live, {request_id})

    def _count_prompt(self, live: Live, asked: Asked) -> Answer:
        """Answer how many tokens the prompt has. Nothing is sampled or recorded."""
        try:
            return Answer(status=200, body=asked.dialect.counted(self._placing.count(live, asked)))
        except RequestError as error:
            return refuse(asked, error)

    async def _fly(self, owner: Owner, live: Live, flight: Flight, *, asked: Asked, sample: Sample) -> None:
        """Run one call to its end."""
        lonely = asyncio.create_task(self._abort_when_lonely(flight))
        self._metrics.calls_open.inc()
        try:
            way = await self._placing.place(live, asked, sample)
            await self._queue(owner, live, flight, asked=asked, way=way)
            self._count(live, way.call_id)
        except RequestError as error:
            flight.put(refuse(asked, error, admitted=flight.admitted))
        except Fenced:
            flight.break_off()
        except Exception as bug:  # the one place where a call's own crash is caught: the log and its listeners must hear of it
            log.exception("call_crashed", session_id=live.session.session_id, request_id=asked.request_id)
            way = self._placing.nowhere(live, asked, sample)
            await self._record_failure(owner, live, asked=asked, way=way, reason=CallFailure.ENGINE_ERROR, detail=repr(bug))
            flight.put(refuse(asked, overloaded("the gateway failed"), admitted=flight.admitted))
        finally:
            lonely.cancel()
            self._metrics.calls_open.dec()
        await _note_undelivered(owner, live, flight.left)

    async def _queue(self, owner: Owner, live: Live, flight: Flight, *, asked: Asked, way: Way) -> None:
        """Wait for an engine and run the call. One that never gets an engine is our failure, and stands in the log as such."""
        admitted = False
        try:
            async with self._pool.slot(way.target, live.session.session_id) as (pooled, waited):
                admitted = True
                await self._run(OpenCall(owner, live, flight, asked=asked, way=way, pooled=pooled, waited_seconds=waited))
        except QueueFull as full:
            await self._record_failure(owner, live, asked=asked, way=way, reason=CallFailure.OVERLOADED, detail="no engine was free")
            flight.put(refuse(asked, overloaded(str(full)), admitted=flight.admitted))
        except asyncio.CancelledError:
            if not admitted and not flight.broken:
                await self._record_failure(owner, live, asked=asked, way=way, reason=CallFailure.OVERLOADED, detail="no engine was free")
            raise

    async def _record_failure(self, owner: Owner, live: Live, *, asked: Asked, way: Way, reason: CallFailure, detail: str) -> None:
        """Record a call that got no engine, or crashed: a failure of ours."""
        opened = opening(live, asked, way, engine_id="")
        try:
            await owner.commit(live, [opened, failing(opened, reason, detail, OVERLOADED_STATUS)])
        except (BusError, BlobError) as error:
            log.error("failure_not_committed", session_id=live.session.session_id, error=str(error))

    async def _run(self, call: OpenCall) -> None:
        self._warn_of_inexact(call)
        try:
            max_tokens = await limit(call)
            call.flight.put(Admitted(prompt_tokens=call.opened.prompt_tokens))
            await point("gateway.admitted")
            await call.sample(max_tokens)
            await call.close()
        except Failure as failed:
            if failed.reason is CallFailure.ENGINE_UNREACHABLE:
                self._pool.avoid(call.pooled)
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
        finally:
            call.live.spending.free(call.opened.call_id)

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
        if call.flight.streamed != NOTHING:  # the harness has seen a part of it
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


async def _note_undelivered(owner: Owner, live: Live, request_ids: Collection[str]) -> None:
    """Record of which answered calls these requests did not receive the answer."""
    async with live.ending:  # not between the rows of a seal and the seal
        for call in live.session.forest.in_order():
            for request_id in sorted((call.requests - call.left).intersection(request_ids)):
                if call.answered and live.session.sealed is None:
                    await owner.commit(live, [undelivered(call.opened, request_id)])
