"""The gateway's decisions, pure: request and session in, decision out. No await, no clock, no I/O."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec
from msgspec import Struct

from evener.dialects.canonical import AnswerChoice, CanonicalAnswer, CanonicalRequest, Message, RequestError
from evener.engines.port import LogprobRule
from evener.proto.arrays import inline, length
from evener.proto.ends import CallFailure, End
from evener.proto.ids import answer_identity, answer_key
from evener.proto.sessions import CallClosed, CallOpened
from evener.proto.spec import Budgets, Sampling, SessionSpec, Target
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


STOP_STATUS: Final = 400
"""The one status that ends every harness at once."""
ANY_MODEL: Final = "*"


class Flying(Protocol):
    """What deciding needs of a call in flight."""

    body_digest: str

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


Decision = FromRecord | Join | Sample


def decide(session: Session, asked: Request, flights: Mapping[str, Flying]) -> Decision:
    """Return what to do with a request.

    A re-send of the relay (same request id) is answered from the record, joins what is in flight, or is tried again. A transport
    retry of the harness (marked as one, or nobody waits for its twin any more) with an equal body gets its twin. Any other equal
    request is a new sample.
    """
    calls = session.forest.in_order()
    own = [call for call in calls if asked.request_id in call.requests]
    for call in own:
        if call.answered:
            return FromRecord(call)
    if asked.request_id in flights:
        return Join(asked.request_id)
    return Sample(len(own) + 1) if own else _retry(session, asked, flights)


def _retry(session: Session, asked: Request, flights: Mapping[str, Flying]) -> Decision:
    """Look for the twin that a new request repeats: first one that nobody got or waits for, then, with a mark, any."""
    flying = [(request_id, flight) for request_id, flight in flights.items() if flight.body_digest == asked.body_digest]
    twins = [
        call
        for call in session.forest.in_order()
        if call.opened.attempt == session.attempt and call.opened.body_digest == asked.body_digest
    ]
    for request_id, flight in reversed(flying):
        if not flight.listened:
            return Join(request_id)
    for call in reversed(twins):
        if call.answered and call.undelivered:
            return FromRecord(call)
    if not asked.marked_retry:
        return Sample(1)
    superseded = {call.opened.retry_of for call in twins}
    for call in reversed(twins):
        if call.ended and not call.answered and call.call_id not in superseded:
            return Sample(1, retry_of=call.call_id)
    if flying:
        return Join(flying[-1][0])
    return FromRecord(twins[-1]) if twins and twins[-1].answered else Sample(1)


def refusal(session: Session, start_id: str) -> RequestError | None:
    """Return why calls under this start are not served, or None."""
    if session.sealed is not None:
        return RequestError(f"session {session.session_id} has ended ({session.sealed.end})", status=STOP_STATUS, kind="session_ended")
    if not session.accepts(start_id):
        return RequestError(f"this attempt of session {session.session_id} has ended", status=STOP_STATUS, kind="session_ended")
    return None


def target_of(spec: SessionSpec, model: str) -> Target:
    """Return where calls to a model name go: the run's model map, else the policy. Raises RequestError for a refused name."""
    target = spec.models.get(model) or spec.models.get(ANY_MODEL) or Target(policy=spec.policy)
    if target.refuse is not None:
        msg = f"model {model!r} is not served in this run: {target.refuse}"
        raise RequestError(msg, field="model", status=STOP_STATUS)
    return target


def spent(session: Session, budgets: Budgets, *, at_once: int = 0) -> End | None:
    """Return which budget the current attempt has used up, or None. `at_once`: other calls in flight."""
    calls = _closed(session)
    turns = 1 + sum(call.placement.parent is not None for call in calls)
    if budgets.tokens is not None and sampled_tokens(session) >= budgets.tokens:
        return End.TOKEN_BUDGET
    if budgets.calls is not None and len(calls) + at_once >= budgets.calls:
        return End.CALL_BUDGET
    if budgets.turns is not None and calls and turns >= budgets.turns:
        return End.TURN_BUDGET
    return None


def sampled_tokens(session: Session) -> int:
    """Return the tokens sampled in closed calls of the current attempt."""
    return sum(call.sampled_tokens for call in _closed(session))


def _closed(session: Session) -> list[Call]:
    return [call for call in session.forest.calls.values() if call.opened.attempt == session.attempt and call.closed is not None]


def enforced(session: Session) -> End | None:
    """Return the budget whose end a call of the current attempt was told, or None. The same live and after a take-over."""
    for call in session.forest.in_order():
        if call.opened.attempt == session.attempt and call.failed is not None and call.failed.reason is CallFailure.BUDGET:
            return End(call.failed.detail)
    return None


def looping(messages: Sequence[Message], repeats: int | None) -> bool:
    """Return whether the history ends with the same tool call and result `repeats` times in a row."""
    if repeats is None:
        return False
    last, count, results = None, 0, ""
    for message in reversed(messages):
        if message.get("role") == "tool":
            results = _spell(message.get("content")) + results
        elif message.get("role") == "assistant" and message.get("tool_calls"):
            this = _spell([(call.get("name"), call.get("arguments")) for call in message["tool_calls"]]) + results
            if last is not None and this != last:
                return False
            last, count, results = this, count + 1, ""
            if count == repeats:
                return True
        else:
            return False
    return False


def answer_tokens(sampling: Sampling, wish: int | None, room: int) -> int:
    """Return how many tokens an answer may have, budgets apart: the run's limit, else the harness's wish, lowered to the room left."""
    return min(room, sampling.max_tokens if sampling.max_tokens is not None else wish or room)


def seed_of(sampling: Sampling, session_id: str, call_number: int, choice: int) -> Sampling:
    """Return the sampling parameters with a seed of this choice's own, where the run asks for seeds."""
    if sampling.seed is None:
        return sampling
    drawn = hashlib.blake2b(f"{sampling.seed}/{session_id}/{call_number}/{choice}".encode(), digest_size=4).digest()
    return msgspec.structs.replace(sampling, seed=int.from_bytes(drawn, "big") & 0x7FFFFFFF)


def exact(rule: LogprobRule, sampling: Sampling) -> bool:
    """Return whether the engine's logprobs are those of the distribution that these parameters sample from."""
    filtered = sampling.top_p < 1 or sampling.top_k > 0 or sampling.min_p > 0
    heated = sampling.temperature != 1
    return (not heated or (rule.any_temperature and sampling.temperature > 0)) and (not filtered or rule.filters)


def body_digest(request: CanonicalRequest) -> str:
    """Return the digest of what was asked: equal requests have equal digests."""
    messages = request.digests or tuple(map(message_digest, request.messages))
    asked = (request.model, messages, request.tools, request.n, request.max_tokens, dict(request.wishes), request.stop)
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
                message=msgspec.json.decode(inline(choice.message)),
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


def unsupported(request: CanonicalRequest, *, vision: bool) -> RequestError | None:
    """Return why a well-formed request cannot be served by this policy, or None."""
    if request.stop:
        return RequestError("stop strings are not supported; remove `stop`", field="stop", status=STOP_STATUS)
    if not vision and any(_has_image(message) for message in request.messages):
        return RequestError("this policy has no vision; send text only", field="messages", status=STOP_STATUS)
    return None


def _has_image(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(part.get("type") == "image" for part in content)


def _spell(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
