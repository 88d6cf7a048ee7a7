"""From a call to the frames of one request's answer: each request that waits for a call gets it in its own words."""

import time
from collections.abc import AsyncIterator, Collection
from contextlib import aclosing

from evener.proto.arrays import inline
from evener.proto.relay import Admitted, Answer, AnyFrame, Waiting
from evener.proto.sessions import CallDelivered, CallOpened
from evener.provider_gateway.asked import OVERLOADED_STATUS, RETRY_AFTER, Asked, answer_of, delta_of, refuse
from evener.provider_gateway.live import Done, Flight, Live, Lost, Piece, Refused
from evener.provider_gateway.owner import Owner
from evener.provider_gateway.threads import PLACING, SHORT_BYTES
from evener.tokens.forest import Call


async def flight_frames(owner: Owner, live: Live, flight: Flight, asked: Asked) -> AsyncIterator[AnyFrame]:
    """Yield the frames of a call in flight."""
    prompt_tokens, admitted = 0, False
    async with aclosing(flight.steps()) as steps:
        async for step in steps:
            match step:
                case Admitted():
                    prompt_tokens, admitted = step.prompt_tokens, True
                    yield step
                case Waiting():
                    yield step
                case Piece() if asked.request.stream:
                    yield delta_of(asked, prompt_tokens, flight, step)
                case Done() if await _deliver(owner, live, step.opened, asked, left=flight.left):
                    yield await _answer(asked, step, recorded=False)
                case Refused():
                    yield refuse(asked, step.error, admitted=admitted)
                case Lost():
                    yield lost(step.detail)
                case _:
                    pass


def lost(detail: str) -> Answer:
    """Return what the relay alone is told: the call was not served, and is to be sent again."""
    return Answer(status=OVERLOADED_STATUS, headers=(RETRY_AFTER,), body=b"", detail=detail)


async def recorded_frames(owner: Owner, live: Live, call: Call, asked: Asked) -> AsyncIterator[AnyFrame]:
    """Yield the frames of a call that was answered before."""
    if call.closed is not None and await _deliver(owner, live, call.opened, asked):
        yield Admitted(prompt_tokens=call.opened.prompt_tokens)
        yield await _answer(asked, Done(opened=call.opened, closed=call.closed), recorded=True)


async def _answer(asked: Asked, done: Done, *, recorded: bool) -> Answer:
    """Return the answer as bytes of its dialect: many or long ones are made in a thread."""
    if sum(len(inline(choice.message)) for choice in done.closed.choices) > SHORT_BYTES:
        return await PLACING.run(answer_of, asked, done, recorded=recorded)
    return answer_of(asked, done, recorded=recorded)


async def _deliver(owner: Owner, live: Live, opened: CallOpened, asked: Asked, *, left: Collection[str] = ()) -> bool:
    """Record that a transport retry gets a call's answer, before it does. Returns False where it left or the session ended meanwhile."""
    if asked.request_id == opened.request_id or asked.request_id in live.session.forest.calls[opened.call_id].requests:
        return True
    if asked.request_id in left:
        return False
    async with live.ending:  # not between the rows of a seal and the seal
        if live.session.sealed is not None:
            return False
        delivered = CallDelivered(
            session_id=opened.session_id,
            attempt=opened.attempt,
            call_id=opened.call_id,
            request_id=asked.request_id,
            delivered_at=time.time(),
        )
        await owner.commit(live, [delivered])
    return True
