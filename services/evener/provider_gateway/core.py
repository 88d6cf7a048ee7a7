"""The gateway's decisions, pure: request and session go in, a decision comes out. No await, no clock, no I/O."""

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct
from opentelemetry.context import Context

from evener.dialects.canonical import AnswerChoice, CanonicalAnswer, CanonicalRequest, Dialect, Head, Overflow, RequestError
from evener.proto.arrays import inline, length
from evener.proto.ids import answer_identity, answer_key
from evener.proto.reasons import CallFailure, TerminationReason
from evener.proto.sessions import CallClosed, CallOpened
from evener.proto.spec import Sampling, SessionSpec, Target
from evener.provider_gateway.inflight import InflightCall
from evener.tokens.digests import message_digest
from evener.tokens.forest import Call
from evener.tokens.session import SessionLog

STOP_STATUS: Final = 400
"""The one HTTP status that ends every harness at once."""
ANY_MODEL: Final = "*"


class ParsedRequest(Struct, frozen=True, kw_only=True, eq=False):
    """The request, with what its headers and its relay say about it."""

    request_id: str
    dialect: Dialect
    canonical: CanonicalRequest
    body_digest: str
    started: bool = False
    """Whether the headers of its answer have left, so that an error is an event of the stream."""
    marked_retry: bool = False
    """Whether its client marks it as a retry."""
    repeats: str | None = None
    """The failed request that it repeats, according to the relay."""
    sub_agent: bool = False
    """Whether the client says that a sub-agent asks."""
    step: int = 0
    """The number of the task's step that runs, from 1, according to the relay. 0: the task has no steps."""
    marks: tuple[str, ...] = ()
    """The names of the headers that may mark a retry or a sub-agent."""
    trace: Context | None = None
    """The trace context of the attempt, as the relay sends it."""

    def head(self, prompt_tokens: int) -> Head:
        """Return the fields of its stream's events that are known before anything is sampled."""
        answer_id, created = answer_identity(self.request_id)
        return Head(answer_id=answer_id, created=created, model=self.canonical.model, prompt_tokens=prompt_tokens)


class FromRecord(Struct, frozen=True):
    """The call was answered: render its answer again."""

    call: Call


class Join(Struct, frozen=True):
    """The call is being sampled under this request id: wait for it."""

    request_id: str


class Sample(Struct, frozen=True):
    """Sample the call, as this try of its request id."""

    try_number: int
    retry_of: str | None = None
    """The call whose answer the harness requests again by a marked retry."""


Decision = FromRecord | Join | Sample | RequestError
"""RequestError: the harness was told that the attempt has ended, so no other call is sampled."""


def decide(session: SessionLog, request: ParsedRequest, inflight: Mapping[str, InflightCall]) -> Decision:
    """Return what to do with a request.

    A request that the relay sends again (same request id) is answered from the record, joins the call in flight, or is tried again. A
    transport retry of the harness with an equal body (marked as one, or nobody waits for its twin any more) gets its twin. Any other equal
    request is a new sample, unless the attempt's harness was told that a budget is spent.
    """
    own = session.forest.of_request(request.request_id)
    for call in own:
        if call.answered:
            return FromRecord(call)
    if request.request_id in inflight:
        return Join(request.request_id)
    if own:
        return Sample(len(own) + 1)
    decision = _retry(session, request, inflight)
    end = enforced(session) if isinstance(decision, Sample) else None
    return decision if end is None else stop(end)


def is_kept(session: SessionLog, request_id: str, inflight: Mapping[str, InflightCall]) -> bool:
    """Return whether a request needs no new call: its call is in flight or was answered. A partition that moves serves no other."""
    return request_id in inflight or any(call.answered for call in session.forest.of_request(request_id))


def resent(session: SessionLog, request_id: str, inflight: Mapping[str, InflightCall]) -> bool:
    """Return whether a request was accepted before. It is then not held because others wait."""
    return request_id in inflight or bool(session.forest.of_request(request_id))


def _retry(session: SessionLog, request: ParsedRequest, inflight: Mapping[str, InflightCall]) -> Decision:
    """Return the twin that a new request repeats: first one that nobody received or waits for, then, with a mark, any.

    Twins whose answer no retry has received yet come first. If the relay says that the repeated request failed, there is no twin:
    the equal requests are votes with answers of their own.
    """
    joinable = [(key, call) for key, call in inflight.items() if call.body_digest == request.body_digest and not call.ended]
    twins = [call for call in session.forest.of_body(request.body_digest) if call.opened.attempt == session.attempt]
    superseded = {call.opened.retry_of for call in twins}
    lost = [call for call in reversed(twins) if call.ended and not call.answered and call.call_id not in superseded]
    if request.repeats is not None:
        return Sample(1, retry_of=next((call.call_id for call in lost if request.repeats in call.requests), None))
    for request_id, other in reversed(joinable):
        if not other.listeners:
            return Join(request_id)
    for call in reversed(twins):
        if call.answered and call.undelivered:
            return FromRecord(call)
    if not request.marked_retry:
        return Sample(1)
    if lost:
        return Sample(1, retry_of=lost[0].call_id)
    if joinable:
        return Join(min(reversed(joinable), key=lambda one: len(one[1].requests))[0])
    answered = [call for call in reversed(twins) if call.answered]
    return FromRecord(min(answered, key=lambda call: len(call.requests))) if answered else Sample(1)


def refusal(session: SessionLog, start_id: str) -> RequestError | None:
    """Return why calls under this start are not served, or None."""
    if session.sealed is not None:
        return _ended(f"session {session.session_id} has ended ({session.sealed.termination_reason})")
    return None if session.accepts(start_id) else _ended(f"this attempt of session {session.session_id} has ended")


def _ended(message: str) -> RequestError:
    return RequestError(message, status=STOP_STATUS, kind="session_ended", reason=CallFailure.CANCELLED)


def target_of(spec: SessionSpec, model: str) -> Target:
    """Return where calls to a model name go: as the run's model map says, or to the policy. Raises RequestError for a refused name."""
    target = spec.models.get(model) or spec.models.get(ANY_MODEL) or Target(policy=spec.policy)
    if target.refuse is not None:
        msg = f"model {model!r} is not served in this run: {target.refuse}"
        raise RequestError(msg, field="model", status=STOP_STATUS, reason=CallFailure.MODEL_REFUSED)
    return target


def targets_of(spec: SessionSpec) -> frozenset[Target]:
    """Return the targets to which calls of a session may go."""
    return frozenset({Target(policy=spec.policy), *(target for target in spec.models.values() if target.refuse is None)})


def enforced(session: SessionLog) -> TerminationReason | None:
    """Return the budget whose end a call of the current attempt reported, or None. The result is the same live and after a take-over."""
    attempt = session.attempt
    told = [
        (call.offset, call.failed.detail)
        for call in session.forest.failed
        if call.failed is not None and call.failed.reason is CallFailure.BUDGET and call.opened.attempt == attempt
    ]
    return TerminationReason(min(told)[1]) if told else None


def stop(end: TerminationReason) -> RequestError:
    """Return the error that tells a harness that a limit of its session is reached."""
    if end is TerminationReason.LOOPING:
        message, kind = "the same tool call gave the same result too often", "looping"
    else:
        message, kind = f"this session's budget is spent ({end})", "budget_spent"
    return RequestError(message, status=STOP_STATUS, kind=kind, reason=CallFailure.BUDGET)


def answer_tokens(sampling: Sampling, requested: int | None, room: int) -> int:
    """Return the limit of an answer without budgets: the run's limit, otherwise the harness's, lowered to the room left."""
    return min(room, sampling.max_tokens if sampling.max_tokens is not None else requested or room)


def seed_of(sampling: Sampling, *path: str | int) -> Sampling:
    """Return the sampling parameters. If they have a seed, it is replaced by one derived from it for this path (session, call, choice)."""
    if sampling.seed is None:
        return sampling
    drawn = hashlib.blake2b("/".join(map(str, (sampling.seed, *path))).encode(), digest_size=4).digest()
    return msgspec.structs.replace(sampling, seed=int.from_bytes(drawn, "big") & 0x7FFFFFFF)


def to_answer(opened: CallOpened, closed: CallClosed, request_id: str) -> CanonicalAnswer:
    """Return the recorded answer for the request that gets it, for its dialect to render."""
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
    """Return why a well-formed request cannot be served, given whether its target has vision. None: it can."""
    if vision or not request.images:
        return None
    path = request.images[0].path
    return RequestError(f"{path}: {who} has no vision; send text only", field=path, status=STOP_STATUS)


def body_digest(request: CanonicalRequest) -> str:
    """Return the digest of a request. Equal requests have equal digests."""
    messages = request.digests or tuple(map(message_digest, request.messages))
    digested = (request.model, messages, request.tools, request.n, request.max_tokens, dict(request.requested_params))
    return hashlib.sha256(msgspec.json.encode(digested, order="deterministic")).hexdigest()


def too_long(dialect: Dialect, message: str, overflow: Overflow | None) -> RequestError:
    """Return the error for a prompt that does not fit the context."""
    reason = CallFailure.CONTEXT_OVERFLOW
    return RequestError(message, field=dialect.history, kind="context_length_exceeded", overflow=overflow, reason=reason)
