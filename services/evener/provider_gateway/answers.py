"""Turns a call into the frames of one request's answer. Each request that waits for a call gets the answer in its own dialect and form."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from evener.dialects.canonical import RequestError
from evener.proto.arrays import inline
from evener.proto.relay import Admitted, Answer, AnyFrame, Delta, Waiting
from evener.provider_gateway.core import to_answer
from evener.provider_gateway.failures import OVERLOADED_STATUS, RETRY_AFTER
from evener.provider_gateway.feed import Answered, Rejected, SendAgain, StreamedPart
from evener.provider_gateway.partition import Partition
from evener.provider_gateway.request import ParsedRequest
from evener.provider_gateway.session import InflightCallProtocol, SessionRuntime
from evener.provider_gateway.threads import PLACING, SHORT_BYTES
from evener.tokens.forest import Call


async def call_frames(
    partition: Partition, session: SessionRuntime, call: InflightCallProtocol, request: ParsedRequest
) -> AsyncGenerator[AnyFrame, None]:
    """Yield the frames of a call in flight."""
    prompt_tokens, admitted = 0, False
    async with aclosing(call.feed.listen()) as steps:
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
                case Answered() if await partition.deliver(session, step.opened, request.request_id, left=call.left):
                    yield await _answer(request, step, recorded=False)
                case Rejected():
                    yield rejection(request, step.error, admitted=admitted)
                case SendAgain():
                    yield send_again(step.detail)
                case _:
                    pass


async def recorded_frames(
    partition: Partition, session: SessionRuntime, call: Call, request: ParsedRequest
) -> AsyncGenerator[AnyFrame, None]:
    """Yield the frames of a call that was answered earlier."""
    if call.closed is not None and await partition.deliver(session, call.opened, request.request_id):
        yield Admitted(prompt_tokens=call.opened.prompt_tokens)
        yield await _answer(request, Answered(opened=call.opened, closed=call.closed), recorded=True)


async def rejected_frames(request: ParsedRequest, error: RequestError) -> AsyncGenerator[AnyFrame, None]:
    """Yield the one frame of a request that is refused."""
    yield rejection(request, error)


def rejection(request: ParsedRequest, error: RequestError, *, admitted: bool = False) -> Answer:
    """Return an error in the harness's dialect: a body, or an event if the headers of a streamed answer have left."""
    headers = (RETRY_AFTER,) if error.status == OVERLOADED_STATUS else ()
    in_stream = request.canonical.stream and (request.started or admitted)
    body = request.dialect.stream_error(request.head(0), error) if in_stream else request.dialect.error(error)
    return Answer(status=error.status, headers=headers, body=body, failure=error.reason, detail=error.message)


def send_again(detail: str) -> Answer:
    """Return what only the relay sees: the call was not served, and the relay is to send it again."""
    return Answer(status=OVERLOADED_STATUS, headers=(RETRY_AFTER,), body=b"", detail=detail)


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
