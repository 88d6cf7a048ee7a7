"""Answers requests: from the record, from a call in flight, or from a new call, each in its own dialect and form."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec import Struct

from evener.bus.port import Fenced
from evener.dialects.canonical import RequestError
from evener.proto.arrays import inline
from evener.proto.relay import Admitted, Answer, AnyFrame, Delta, Waiting
from evener.provider_gateway.call import CallRun, CallServices
from evener.provider_gateway.core import FromRecord, Join, ParsedRequest, Sample, decide, refusal, resent, targets_of, to_answer
from evener.provider_gateway.engine_scheduler import AdmissionPermit
from evener.provider_gateway.failures import OVERLOADED_STATUS, RETRY_AFTER, call_error, outcome
from evener.provider_gateway.inflight import Answered, InflightCall, Rejected, SendAgain, StreamedPart
from evener.provider_gateway.partition import Partition
from evener.provider_gateway.session import SessionRuntime
from evener.provider_gateway.threads import PLACING, SHORT_BYTES
from evener.tokens.forest import Call


class Answerer(Struct, frozen=True, eq=False):
    """The calls of the partitions that this gateway owns."""

    services: CallServices

    async def admit(self, session: SessionRuntime, start_id: str, request_id: str, seconds: float) -> AdmissionPermit | None:
        """Wait until a request can be admitted, before it is read. None: engines and queue stay full for longer than `seconds`."""
        if refusal(session.log, start_id) is not None or resent(session.log, request_id, session.calls):
            return AdmissionPermit()
        asked_at = time.time()
        permit = await self.services.engines.admit(targets_of(session.started.spec), seconds)
        if permit is not None:
            permit.asked_at = asked_at
        return permit

    def serve(
        self, partition: Partition, session: SessionRuntime, start_id: str, request: ParsedRequest, permit: AdmissionPermit
    ) -> AsyncGenerator[AnyFrame, None]:
        """Return the frames of a request's answer. A new call begins at once. Raises RequestError, and any bug, before the first frame."""
        frames = self._frames(partition, session, start_id, request, permit)
        return request_frames(frames, session, request, self.services.transparent_retry_seconds)

    def _frames(
        self, partition: Partition, session: SessionRuntime, start_id: str, request: ParsedRequest, permit: AdmissionPermit
    ) -> AsyncGenerator[AnyFrame, None]:
        if (refused := refusal(session.log, start_id)) is not None:
            return _rejected_frames(request, refused)
        if request.canonical.count_only:
            return self._count_prompt(session, request)
        match decide(session.log, request, session.calls):
            case Sample() as sample:
                begun = CallRun(self.services, partition, session, request, sample=sample, permit=permit)
                return _call_frames(partition, session, begun.call, request)
            case Join(request_id):
                permit.release()
                call = session.calls[request.request_id] = session.calls[request_id]
                call.requests.add(request.request_id)
                return _call_frames(partition, session, call, request)
            case FromRecord(recorded):
                permit.release()
                return _recorded_frames(partition, session, recorded, request)
            case RequestError() as told:
                return _rejected_frames(request, told)

    async def disconnect(self, partition: Partition, session: SessionRuntime, request_id: str) -> None:
        """Abort the open call of a harness that disconnected, unless a retry waits for it, or record that its answer was lost."""
        if (call := session.calls.get(request_id)) is not None:
            call.disconnected.add(request_id)
            if not call.disconnected.issuperset(call.requests):
                return  # recorded when the call has ended
            call.cancel()
            await call.until_recorded()
        await partition.note_undelivered(session, {request_id})

    async def _count_prompt(self, session: SessionRuntime, request: ParsedRequest) -> AsyncGenerator[AnyFrame, None]:
        """Answer with the number of tokens in the prompt. Nothing is sampled or recorded."""
        yield Answer(status=200, body=request.dialect.counted(await self.services.placer.count(session, request)))


async def request_frames(
    frames: AsyncGenerator[AnyFrame, None], session: SessionRuntime, request: ParsedRequest, patience_seconds: float
) -> AsyncGenerator[AnyFrame, None]:
    """Yield the frames of a request. All errors on its way end here, as those of its call end in the call's task.

    If the partition was taken over, the frames end without an outcome, so that the relay asks the next owner.
    """
    admitted = answer_seen = False
    try:
        async with aclosing(frames):
            async for frame in frames:
                admitted, answer_seen = admitted or isinstance(frame, Admitted), answer_seen or isinstance(frame, Delta)
                yield frame
    except Fenced:
        return
    except Exception as error:  # noqa: BLE001 - a bug is answered too
        told, _ = call_error(error, session.session_id, request.request_id, request.dialect)
        end = outcome(error, told, session, request.request_id, answer_seen=answer_seen, patience_seconds=patience_seconds)
        yield _without_answer(request, end, admitted=admitted)


async def _call_frames(
    partition: Partition, session: SessionRuntime, call: InflightCall, request: ParsedRequest
) -> AsyncGenerator[AnyFrame, None]:
    """Yield the frames of a call in flight."""
    prompt_tokens, admitted = 0, False
    async with aclosing(call.listen()) as steps:
        async for step in steps:
            match step:
                case Admitted():
                    prompt_tokens, admitted = step.prompt_tokens, True
                    yield step
                case Waiting():
                    yield step
                case StreamedPart() if request.canonical.stream:
                    body = request.dialect.delta(
                        request.head(prompt_tokens), step.key, step.before, reasoning=step.reasoning, text=step.text
                    )
                    yield Delta(body=body)
                case Answered() if await partition.deliver(session, step.opened, request.request_id, disconnected=call.disconnected):
                    yield await _answer(request, step, recorded=False)
                case Rejected() | SendAgain():
                    yield _without_answer(request, step, admitted=admitted)
                case _:
                    pass


async def _recorded_frames(
    partition: Partition, session: SessionRuntime, call: Call, request: ParsedRequest
) -> AsyncGenerator[AnyFrame, None]:
    """Yield the frames of a call that was answered earlier."""
    if call.closed is not None and await partition.deliver(session, call.opened, request.request_id):
        yield Admitted(prompt_tokens=call.opened.prompt_tokens)
        yield await _answer(request, Answered(opened=call.opened, closed=call.closed), recorded=True)


async def _rejected_frames(request: ParsedRequest, error: RequestError) -> AsyncGenerator[AnyFrame, None]:
    """Yield the one frame of a request that is refused."""
    yield _without_answer(request, Rejected(error))


def _without_answer(request: ParsedRequest, end: Rejected | SendAgain, *, admitted: bool = False) -> Answer:
    """Return an error in the harness's dialect (a body, or an event of a stream whose headers have left), or what only the relay sees."""
    if isinstance(end, SendAgain):
        return Answer(status=OVERLOADED_STATUS, headers=(RETRY_AFTER,), body=b"", detail=end.detail)
    error = end.error
    in_stream = request.canonical.stream and (request.started or admitted)
    return error_answer(error, request.dialect.stream_error(request.head(0), error) if in_stream else request.dialect.error(error))


def error_answer(error: RequestError, body: bytes) -> Answer:
    """Return an error as the answer of a request. `body` has it in the harness's dialect."""
    headers = (RETRY_AFTER,) if error.status == OVERLOADED_STATUS else ()
    return Answer(status=error.status, headers=headers, body=body, failure=error.reason, detail=error.message)


async def _answer(request: ParsedRequest, answered: Answered, *, recorded: bool) -> Answer:
    """Return the answer as bytes of its dialect. Many or long answers are rendered in a thread."""
    if sum(len(inline(choice.message)) for choice in answered.closed.choices) > SHORT_BYTES:
        return await PLACING.run(rendered, request, answered, recorded=recorded)
    return rendered(request, answered, recorded=recorded)


def rendered(request: ParsedRequest, answered: Answered, *, recorded: bool) -> Answer:
    """Return the committed answer as bytes of its dialect, which are the same whenever it is rendered."""
    answer = to_answer(answered.opened, answered.closed, request.request_id)
    if request.canonical.stream:
        body = request.dialect.events(request.canonical, answer, answered.streamed)
    else:
        body = request.dialect.answer(request.canonical, answer)
    return Answer(status=200, body=body, recorded=recorded)
