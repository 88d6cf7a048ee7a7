"""Serves calls: from the record, from a call in flight, or from a new one that is placed, sampled and committed."""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

import structlog

from evener.blobs.port import BlobError, Blobs
from evener.bus.port import BusError, Fenced
from evener.dialects.canonical import NOTHING, RequestError
from evener.proto.ends import CallFailure
from evener.proto.relay import Admitted, Answer, AnyFrame, Waiting
from evener.proto.sessions import CallFailed, CallOpened
from evener.provider_gateway.admission import Ticket
from evener.provider_gateway.answering import flight_frames, lost, recorded_frames
from evener.provider_gateway.asked import Asked, Failure, overloaded, refuse
from evener.provider_gateway.core import FromRecord, Refuse, Sample, decide, refusal, resent, stop, targets_of
from evener.provider_gateway.limits import admit, limit
from evener.provider_gateway.live import LOST, Flight, Live, Lost, Refused
from evener.provider_gateway.open_call import OpenCall, Way, ending, failing, opening, undelivered
from evener.provider_gateway.owner import Owner
from evener.provider_gateway.placing import Placing, PolicyUnknown
from evener.provider_gateway.policies import Policy
from evener.provider_gateway.slots import NoEngine, Slots
from evener.service.faults import point
from evener.service.off_loop import to_its_end
from evener.service.telemetry import Metrics

UNSEEN_TRIES: Final = 8
"""Tries of a request that engines failed, before its harness is told: it may be what they fail of."""

log = structlog.get_logger()


class Calls:
    """Serves the calls of the partitions that this gateway owns."""

    def __init__(
        self,
        slots: Slots,
        policies: Mapping[str, Policy],
        blobs: Blobs,
        metrics: Metrics,
        *,
        lonely_seconds: float,
        unseen_seconds: float,
    ) -> None:
        self._slots = slots
        self._placing = Placing(policies, blobs)
        self._metrics = metrics
        self._lonely_seconds = lonely_seconds
        self._unseen_seconds = unseen_seconds
        self._told: set[str] = set()
        """Policies that are not known here, by run."""

    async def ticket(self, live: Live, start_id: str, request_id: str, seconds: float) -> Ticket | None:
        """Wait until a request can come in, before anything of it is read. None: engines and queue are full for longer than `seconds`."""
        session = live.session
        if refusal(session, start_id) is not None or resent(session, request_id, live.flights):
            return Ticket()
        return await self._slots.admission.ticket(targets_of(session.starts[session.attempt].spec), seconds)

    async def serve(self, owner: Owner, live: Live, start_id: str, asked: Asked, ticket: Ticket) -> AsyncGenerator[AnyFrame, None]:
        """Yield the frames of a request's answer."""
        if (refused := refusal(live.session, start_id)) is not None:
            yield refuse(asked, refused)
            return
        if asked.request.count_only:
            yield await self._count_prompt(live, asked)
            return
        decision = decide(live.session, asked, live.flights)
        if not isinstance(decision, Sample):
            ticket.give_back()
        if isinstance(decision, FromRecord):
            async for frame in recorded_frames(owner, live, decision.call, asked):
                yield frame
            return
        if isinstance(decision, Refuse):
            yield refuse(asked, stop(decision.end))
            return
        if isinstance(decision, Sample):
            flight = live.flights[asked.request_id] = Flight(asked.request_id, asked.body_digest)
            flight.task = asyncio.create_task(self._fly(owner, live, flight, asked=asked, sample=decision, ticket=ticket))
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

    async def _count_prompt(self, live: Live, asked: Asked) -> Answer:
        """Answer how many tokens the prompt has. Nothing is sampled or recorded."""
        try:
            return Answer(status=200, body=asked.dialect.counted(await self._placing.count(live, asked)))
        except RequestError as error:
            return refuse(asked, error)
        except PolicyUnknown as ours:
            return lost(self._tell(ours))

    def _tell(self, unknown: PolicyUnknown) -> str:
        """Tell the operator once a run; return what is wrong in short."""
        short = str(unknown.args[0])
        if short not in self._told:
            self._told.add(short)
            log.error("policy_unknown", error=str(unknown))
        return short

    async def _fly(self, owner: Owner, live: Live, flight: Flight, *, asked: Asked, sample: Sample, ticket: Ticket) -> None:
        """Run one call to its end."""
        lonely = asyncio.create_task(self._abort_when_lonely(flight))
        self._metrics.calls_open.inc()
        try:
            way = await self._placing.place(live, asked, sample)
            await self._within_budgets(owner, live, flight, asked=asked, way=way, ticket=ticket)
            self._count(live, way.call_id)
        except RequestError as error:
            flight.put(Refused(error))
        except PolicyUnknown as ours:
            flight.put(Lost(self._tell(ours)))
        except Fenced:
            flight.break_off()
        except BlobError as away:  # an image was not stored
            log.error("call_not_committed", session_id=live.session.session_id, error=str(away))
            flight.put(Refused(_unwritten().error))
        except Exception as bug:  # the one place where a call's own crash is caught: the log and its listeners must hear of it
            log.exception("call_crashed", session_id=live.session.session_id, request_id=asked.request_id)
            way = self._placing.nowhere(live, asked, sample)
            with suppress(Fenced):  # then the relay alone is told, when the flight lands
                await self._fail(owner, live, flight, opened=opening(live, asked, way, engine_id=""), failure=_crashed(bug))
        finally:
            lonely.cancel()
            self._metrics.calls_open.dec()
        if not flight.stopped:  # else who writes the end waits for this task, and a cancellation beside an error may have got lost
            await _note_undelivered(owner, live, flight.left)

    async def _within_budgets(self, owner: Owner, live: Live, flight: Flight, *, asked: Asked, way: Way, ticket: Ticket) -> None:
        """Run a call that the session's budgets have room for. One that they have not is told so, and stands in the log."""
        try:
            admit(live, asked, way)
            await self._queue(owner, live, flight, asked=asked, way=way, ticket=ticket)
        except Failure as refused:
            await self._fail(owner, live, flight, opened=opening(live, asked, way, engine_id=""), failure=refused)
        finally:
            live.spending.free(way.call_id)

    async def _queue(self, owner: Owner, live: Live, flight: Flight, *, asked: Asked, way: Way, ticket: Ticket) -> None:
        """Wait for an engine and run the call. One that never gets an engine is our failure, and stands in the log as such."""
        admitted = False
        try:
            async with self._slots.slot(way.target, live.session.session_id, ticket) as (pooled, waited):
                admitted = True
                another = partial(self._slots.another, pooled)
                call = OpenCall(owner, live, flight, asked=asked, way=way, pooled=pooled, waited_seconds=waited, another_place=another)
                await self._run(call)
        except NoEngine as none:
            raise Failure(CallFailure.ENGINE_UNREACHABLE, overloaded("no engine answers"), str(none.args[0])) from none
        except asyncio.CancelledError:
            if not admitted and not flight.broken:
                left = Failure(CallFailure.OVERLOADED, overloaded("no engine was free"))
                await self._record(owner, live, opening(live, asked, way, engine_id=""), left)
            raise

    async def _run(self, call: OpenCall) -> None:
        self._warn_of_inexact(call)
        try:
            max_tokens = limit(call)
            call.flight.put(Admitted(prompt_tokens=call.opened.prompt_tokens))
            await point("gateway.admitted")
            await call.sample(max_tokens)
            await call.close()
        except Failure as failed:
            if failed.reason is CallFailure.ENGINE_UNREACHABLE:
                call.pooled.suspect()
            elif failed.reason is CallFailure.ENGINE_ERROR:
                call.pooled.avoid()
            await self._fail_open(call, failed)
        except Fenced:
            raise
        except (BusError, BlobError) as error:
            log.error("call_not_committed", session_id=call.opened.session_id, error=str(error))
            if isinstance(error, BlobError):  # waited for already, as long as a harness may be kept waiting
                call.live.unwritten_since.setdefault(call.asked.request_id, -math.inf)
            await self._fail_open(call, _unwritten())
        except asyncio.CancelledError:
            if not call.flight.broken:
                await call.abort()
            raise
        except Exception as bug:  # recorded as ours, then told as every other crash
            log.exception("call_crashed", session_id=call.opened.session_id, call_id=call.opened.call_id)
            await self._fail_open(call, _crashed(bug))

    async def _fail_open(self, call: OpenCall, failure: Failure) -> None:
        """End a call that had an engine with a failure. What was sampled in vain is not the agent's time."""
        again = self._again(call.live, call.flight, call.asked.request_id, failure.reason)
        await self._fail(
            call.owner,
            call.live,
            call.flight,
            opened=call.opened,
            failure=failure,
            again=again,
            began=call.engine_began,
            sampled_tokens=call.sampled_tokens,
        )

    async def _fail(
        self,
        owner: Owner,
        live: Live,
        flight: Flight,
        *,
        opened: CallOpened,
        failure: Failure,
        again: bool = False,
        began: float | None = None,
        sampled_tokens: int = 0,
    ) -> None:
        """Record a failure, then tell the harness in its dialect, or (`again`) the relay alone. Raises Fenced.

        The log comes first: while it takes nothing, nothing else is told.
        """
        if not await self._record(owner, live, opened, failure, sampled_tokens):
            failure = _unwritten()
            again = self._again(live, flight, opened.request_id, failure.reason)
        if again and began is not None:
            flight.put(Waiting(seconds=time.time() - began))
        flight.put(LOST if again else Refused(failure.error))

    async def _record(self, owner: Owner, live: Live, opened: CallOpened, failure: Failure, sampled_tokens: int = 0) -> bool:
        """Record a failure; return whether the log took it. Raises Fenced.

        A cancelled caller waits all the same: what the log does not take is owed to the books.
        """
        failed = failing(opened, failure.reason, failure.detail, failure.error.status, sampled_tokens)
        return await to_its_end(self._commit_or_owe(owner, live, opened, failed))

    async def _commit_or_owe(self, owner: Owner, live: Live, opened: CallOpened, failed: CallFailed) -> bool:
        try:
            await owner.commit(live, ending(live, opened, failed))
        except Fenced:
            raise
        except asyncio.CancelledError:  # the harness left, or its session ended, while large records waited for the blob store
            if not live.session.has_ended(opened.call_id):
                live.owe(opened, failed)
            raise
        except (BusError, BlobError) as error:
            live.owe(opened, failed)
            log.error("failure_not_committed", session_id=live.session.session_id, error=str(error))
            return False
        return True

    def _warn_of_inexact(self, call: OpenCall) -> None:
        """Tell the operator once a session that nothing of it can be trained at these settings."""
        sampling, rule = call.opened.sampling, call.pooled.rule
        if not call.live.warned and not rule.exact_for(sampling):
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

    def _again(self, live: Live, flight: Flight, request_id: str, reason: CallFailure) -> bool:
        """Return whether the relay shall send the request again, unseen by the harness: an engine or the log may come back."""
        if flight.streamed != NOTHING:  # the harness has seen a part of it
            return False
        if reason is CallFailure.NOT_COMMITTED:
            now = asyncio.get_running_loop().time()
            return now - live.unwritten_since.setdefault(request_id, now) < self._unseen_seconds
        live.lost_tries[request_id] += reason is CallFailure.ENGINE_UNREACHABLE
        return reason is CallFailure.ENGINE_UNREACHABLE and live.lost_tries[request_id] < UNSEEN_TRIES

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
        self._metrics.tokens_sampled.labels(known.opened.policy or known.opened.engine_id).inc(known.sampled_tokens)
        if known.closed is not None:
            self._metrics.call_seconds.labels(known.opened.dialect).observe(known.closed.closed_at - known.opened.opened_at)
            self._metrics.engine_seconds.observe(known.closed.engine_seconds)
            self._metrics.answers_continued.inc(sum(len(choice.continued_at) for choice in known.choices))


def _unwritten() -> Failure:
    return Failure(CallFailure.NOT_COMMITTED, overloaded("the log cannot be written; try again"))


def _crashed(bug: Exception) -> Failure:
    return Failure(CallFailure.ENGINE_ERROR, overloaded("the gateway failed"), repr(bug))


async def _note_undelivered(owner: Owner, live: Live, request_ids: Collection[str]) -> None:
    """Record of which answered calls these requests did not receive the answer."""
    async with live.ending:  # not between the rows of a seal and the seal
        for call in live.session.forest.in_order():
            for request_id in sorted((call.requests - call.left).intersection(request_ids)):
                if call.answered and live.session.sealed is None:
                    await owner.commit(live, [undelivered(call.opened, request_id)])
