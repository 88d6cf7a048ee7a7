"""The gateway's decisions, pure: request and session in, decision out. No await, no clock, no I/O."""

import hashlib
from collections.abc import Collection, Mapping
from typing import Any, Final, Protocol

import msgspec
from msgspec import Struct

from evener.dialects.canonical import AnswerChoice, CanonicalAnswer, CanonicalRequest, RequestError
from evener.proto.arrays import inline, length
from evener.proto.ends import CallFailure, End
from evener.proto.ids import answer_identity, answer_key
from evener.proto.sessions import CallClosed, CallOpened
from evener.proto.spec import Sampling, SessionSpec, Target
from evener.tokens.digests import message_digest
from evener.tokens.forest import Call
from evener.tokens.session import Session


class Request(Protocol):
    """What deciding needs of a harness's request."""

    @property
    def request_id(self) -> str: ...
    @property
    def body_digest(self) -> str: ...
    @property
    def marked_retry(self) -> bool: ...
    @property
    def unserved(self) -> str | None: ...


STOP_STATUS: Final = 400
"""The one status that ends every harness at once."""
ANY_MODEL: Final = "*"


class Flying(Protocol):
    """What deciding needs of a call in flight."""

    body_digest: str

    @property
    def ended(self) -> bool:
        """Whether no request may join it: what it came to was said, and is on its way to those who waited; or its attempt is over."""
        ...

    @property
    def requests(self) -> Collection[str]:
        """Those that were sent to it."""
        ...

    @property
    def listened(self) -> bool:
        """Whether anybody waits for it."""
        ...


class FromRecord(Struct, frozen=True):
    """The call was answered: render it again."""

    call: Call


class Join(Struct, frozen=True):
    """It is being sampled, under this request id: wait for that."""

    request_id: str


class Sample(Struct, frozen=True):
    """Sample it, as this try of its request id."""

    try_number: int
    retry_of: str | None = None
    """The call whose answer its harness asks again for, by its mark."""


class Refuse(Struct, frozen=True):
    """Its harness was told before that the attempt has come to this end: no other call is sampled."""

    end: End


Decision = FromRecord | Join | Sample | Refuse


def decide(session: Session, asked: Request, flights: Mapping[str, Flying]) -> Decision:
    """Return what to do with a request.

    A re-send of the relay (same request id) is answered from the record, joins what is in flight, or is tried again. A transport
    retry of the harness (marked as one, or nobody waits for its twin any more) with an equal body gets its twin. Any other equal
    request is a new sample, unless the attempt's harness was told that a budget is spent.
    """
    calls = session.forest.in_order()
    own = [call for call in calls if asked.request_id in call.requests]
    for call in own:
        if call.answered:
            return FromRecord(call)
    if asked.request_id in flights:
        return Join(asked.request_id)
    if own:
        return Sample(len(own) + 1)
    decision = _retry(session, asked, flights)
    end = enforced(session) if isinstance(decision, Sample) else None
    return decision if end is None else Refuse(end)


def resent(session: Session, request_id: str, flights: Mapping[str, Flying]) -> bool:
    """Return whether a request was accepted before: it is not held because others wait."""
    return request_id in flights or any(request_id in call.requests for call in session.forest.calls.values())


def _retry(session: Session, asked: Request, flights: Mapping[str, Flying]) -> Decision:
    """Look for the twin that a new request repeats: first one that nobody got or waits for, then, with a mark, any.

    Of several those come first that no retry has had before. Where the relay knows that the one which it repeats was not served,
    there is none: the others are votes with answers of their own.
    """
    flying = [(key, flight) for key, flight in flights.items() if flight.body_digest == asked.body_digest and not flight.ended]
    twins = [
        call
        for call in session.forest.in_order()
        if call.opened.attempt == session.attempt and call.opened.body_digest == asked.body_digest
    ]
    superseded = {call.opened.retry_of for call in twins}
    lost = [call for call in reversed(twins) if call.ended and not call.answered and call.call_id not in superseded]
    if asked.unserved is not None:
        return Sample(1, retry_of=next((call.call_id for call in lost if asked.unserved in call.requests), None))
    for request_id, flight in reversed(flying):
        if not flight.listened:
            return Join(request_id)
    for call in reversed(twins):
        if call.answered and call.undelivered:
            return FromRecord(call)
    if not asked.marked_retry:
        return Sample(1)
    if lost:
        return Sample(1, retry_of=lost[0].call_id)
    if flying:
        return Join(min(reversed(flying), key=lambda one: len(one[1].requests))[0])
    answered = [call for call in reversed(twins) if call.answered]
    return FromRecord(min(answered, key=lambda call: len(call.requests))) if answered else Sample(1)


def refusal(session: Session, start_id: str) -> RequestError | None:
    """Return why calls under this start are not served, or None."""
    if session.sealed is not None:
        return _ended(f"session {session.session_id} has ended ({session.sealed.end})")
    return None if session.accepts(start_id) else _ended(f"this attempt of session {session.session_id} has ended")


def _ended(message: str) -> RequestError:
    return RequestError(message, status=STOP_STATUS, kind="session_ended", reason=CallFailure.CANCELLED)


def target_of(spec: SessionSpec, model: str) -> Target:
    """Return where calls to a model name go: the run's model map, else the policy. Raises RequestError for a refused name."""
    target = spec.models.get(model) or spec.models.get(ANY_MODEL) or Target(policy=spec.policy)
    if target.refuse is not None:
        msg = f"model {model!r} is not served in this run: {target.refuse}"
        raise RequestError(msg, field="model", status=STOP_STATUS, reason=CallFailure.MODEL_REFUSED)
    return target


def targets_of(spec: SessionSpec) -> frozenset[Target]:
    """Return where calls of a session may go."""
    return frozenset({Target(policy=spec.policy), *(target for target in spec.models.values() if target.refuse is None)})


def enforced(session: Session) -> End | None:
    """Return the budget whose end a call of the current attempt was told, or None. The same live and after a take-over."""
    told = [
        (call.offset, call.failed.detail)
        for call in session.forest.calls.values()
        if call.opened.attempt == session.attempt and call.failed is not None and call.failed.reason is CallFailure.BUDGET
    ]
    return End(min(told)[1]) if told else None


def stop(end: End) -> RequestError:
    """Return how a harness is told that a limit of its session is reached."""
    if end is End.LOOPING:
        message, kind = "the same tool call gave the same result too often", "looping"
    else:
        message, kind = f"this session's budget is spent ({end})", "budget_spent"
    return RequestError(message, status=STOP_STATUS, kind=kind, reason=CallFailure.BUDGET)


def answer_tokens(sampling: Sampling, wish: int | None, room: int) -> int:
    """Return how many tokens an answer may have, budgets apart: the run's limit, else the harness's wish, lowered to the room left."""
    return min(room, sampling.max_tokens if sampling.max_tokens is not None else wish or room)


def seed_of(sampling: Sampling, session_id: str, call_number: int, choice: int) -> Sampling:
    """Return the sampling parameters with a seed of this choice's own, where the run asks for seeds."""
    if sampling.seed is None:
        return sampling
    drawn = hashlib.blake2b(f"{sampling.seed}/{session_id}/{call_number}/{choice}".encode(), digest_size=4).digest()
    return msgspec.structs.replace(sampling, seed=int.from_bytes(drawn, "big") & 0x7FFFFFFF)


def body_digest(request: CanonicalRequest) -> str:
    """Return the digest of what was asked: equal requests have equal digests."""
    messages = request.digests or tuple(map(message_digest, request.messages))
    asked = (request.model, messages, request.tools, request.n, request.max_tokens, dict(request.wishes))
    return hashlib.sha256(msgspec.json.encode(asked, order="deterministic")).hexdigest()


def to_answer(opened: CallOpened, closed: CallClosed, request_id: str) -> CanonicalAnswer:
    """Return the answer as recorded, to the request that gets it, for its dialect to render."""
    answer_id, created = answer_identity(request_id)
    return CanonicalAnswer(
        answer_id=answer_id,
        created=created,
        model=opened.model,
        choices=[
            AnswerChoice(
                message=_shown(msgspec.json.decode(inline(choice.message)), opened),
                finish_reason=choice.finish_reason,
                key=answer_key(closed.call_id, index),
            )
            for index, choice in enumerate(closed.choices)
        ],
        prompt_tokens=opened.prompt_tokens if closed.prompt_tokens is None else closed.prompt_tokens,
        cached_tokens=closed.cached_tokens,
        completion_tokens=sum(length(choice.sampled_ids) for choice in closed.choices),
        reasoning_tokens=sum(choice.reasoning_tokens for choice in closed.choices),
    )


def _shown(message: dict[str, Any], opened: CallOpened) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name != "reasoning"} if opened.reasoning_withheld else message


def unsupported(request: CanonicalRequest, who: str, *, vision: bool) -> RequestError | None:
    """Return why a well-formed request cannot be served by who has vision or has none, or None."""
    if vision or not request.images:
        return None
    place = request.images[0].place
    return RequestError(f"{place}: {who} has no vision; send text only", field=place, status=STOP_STATUS)
