"""Serves requests: from the record, from a call in flight, or from a new call."""

from collections.abc import AsyncGenerator

from msgspec import Struct

from evener.dialects.canonical import RequestError
from evener.proto.relay import Answer, AnyFrame
from evener.provider_gateway.answers import call_frames, recorded_frames, rejected_frames, rejection, send_again
from evener.provider_gateway.call import CallServices, InflightCall
from evener.provider_gateway.core import FromRecord, Join, Sample, decide, refusal, resent, targets_of
from evener.provider_gateway.engine_scheduler import AdmissionPermit
from evener.provider_gateway.partition import Partition
from evener.provider_gateway.placement import PolicyNotConfigured
from evener.provider_gateway.request import ParsedRequest
from evener.provider_gateway.session import SessionRuntime


class Calls(Struct, frozen=True, eq=False):
    """The calls of the partitions that this gateway owns."""

    services: CallServices

    async def admit(self, session: SessionRuntime, start_id: str, request_id: str, seconds: float) -> AdmissionPermit | None:
        """Wait until a request can be admitted, before it is read. None: engines and queue stay full for longer than `seconds`."""
        if refusal(session.log, start_id) is not None or resent(session.log, request_id, session.calls):
            return AdmissionPermit()
        return await self.services.engines.admit(targets_of(session.started.spec), seconds)

    def serve(
        self, partition: Partition, session: SessionRuntime, start_id: str, request: ParsedRequest, permit: AdmissionPermit
    ) -> AsyncGenerator[AnyFrame, None]:
        """Return the frames of a request's answer. A new call begins at once."""
        if (refused := refusal(session.log, start_id)) is not None:
            return rejected_frames(request, refused)
        if request.canonical.count_only:
            return self._count_prompt(session, request)
        match decide(session.log, request, session.calls):
            case Sample() as sample:
                begun = InflightCall(self.services, partition, session, request, sample=sample, permit=permit)
                return call_frames(partition, session, begun, request)
            case Join(request_id):
                permit.release()
                call = session.calls[request_id]
                call.join(request.request_id)
                return call_frames(partition, session, call, request)
            case FromRecord(recorded):
                permit.release()
                return recorded_frames(partition, session, recorded, request)
            case RequestError() as told:
                return rejected_frames(request, told)

    async def left(self, partition: Partition, session: SessionRuntime, request_id: str) -> None:
        """Abort the open call of a harness that disconnected, unless a retry waits for it, or record that its answer was lost."""
        if (call := session.calls.get(request_id)) is not None:
            call.left.add(request_id)
            if not call.left.issuperset(call.requests):
                return  # recorded when the call has ended
            call.cancel()
            await call.over()
        await partition.note_undelivered(session, {request_id})

    async def _count_prompt(self, session: SessionRuntime, request: ParsedRequest) -> AsyncGenerator[AnyFrame, None]:
        """Answer with the number of tokens in the prompt. Nothing is sampled or recorded."""
        try:
            yield Answer(status=200, body=request.dialect.counted(await self.services.placer.count(session, request)))
        except RequestError as error:
            yield rejection(request, error)
        except PolicyNotConfigured as unknown:
            yield send_again(str(unknown.args[0]))
