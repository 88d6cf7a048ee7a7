"""The gateway's decisions, pure: request and session in, decision out. No await, no clock, no I/O."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from evener.dialects.canonical import AnswerChoice, CanonicalAnswer, CanonicalRequest, Message, RequestError
from evener.engines.port import LogprobRule
from evener.proto.arrays import inline
from evener.proto.ends import CallFailure, End
from evener.proto.sessions import CallClosed, CallOpened
from evener.proto.spec import Budgets, Sampling, SessionSpec, Target
from evener.tokens.session import Session

STOP_STATUS: Final = 400
"""The one status that ends every harness at once."""
ANY_MODEL: Final = "*"


class FromRecord(Struct, frozen=True):
    """The request was answered: render the same bytes again."""

    opened: CallOpened
    closed: CallClosed


class Join(Struct, frozen=True):
    """The request is being sampled: wait for that."""


class Sample(Struct, frozen=True):
    """Sample it, as this try of its request id."""

    try_number: int


Decision = FromRecord | Join | Sample


def decide(session: Session, request_id: str, *, in_flight: bool) -> Decision:
    """Return what to do with a request id: a re-send of the relay is answered from the record, joins, or is tried again."""
    tries = [call for call in session.forest.in_order() if call.opened.request_id == request_id]
    for call in tries:
        if call.closed is not None and call.answered:
            return FromRecord(call.opened, call.closed)
    return Join() if in_flight else Sample(len(tries) + 1)


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


def spent(session: Session, budgets: Budgets) -> End | None:
    """Return which budget the current attempt has used up, or None."""
    calls = [call for call in session.forest.in_order() if call.opened.attempt == session.attempt and call.closed is not None]
    turns = 1 + sum(call.placement.parent is not None for call in calls)
    if budgets.tokens is not None and sum(call.sampled_tokens for call in calls) >= budgets.tokens:
        return End.TOKEN_BUDGET
    if budgets.calls is not None and len(calls) >= budgets.calls:
        return End.CALL_BUDGET
    if budgets.turns is not None and calls and turns >= budgets.turns:
        return End.TURN_BUDGET
    return None


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
    rounds: list[str] = []
    for message in messages:
        if message.get("role") == "assistant":
            rounds.append(_spell([(call.get("name"), call.get("arguments")) for call in message.get("tool_calls") or ()]))
        elif rounds and message.get("role") == "tool":
            rounds[-1] += _spell(message.get("content"))
        else:
            rounds.clear()
    return len(rounds) >= repeats and len(set(rounds[-repeats:])) == 1


def answer_tokens(sampling: Sampling, wish: int | None, budgets: Budgets, *, sampled: int, room: int, choices: int) -> int:
    """Return how many tokens each answer may have: the run's limit, else the harness's wish, lowered to what is left."""
    limits = [room, sampling.max_tokens if sampling.max_tokens is not None else wish or room]
    if budgets.tokens is not None:
        limits.append(max(1, (budgets.tokens - sampled) // choices))
    return min(limits)


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
    asked = (request.model, request.messages, request.tools, request.n, request.max_tokens, dict(request.wishes), request.stop)
    return hashlib.sha256(msgspec.json.encode(asked, order="deterministic")).hexdigest()


def to_answer(opened: CallOpened, closed: CallClosed) -> CanonicalAnswer:
    """Return the answer as recorded, for its dialect to render."""
    return CanonicalAnswer(
        answer_id=closed.answer_id,
        created=closed.answer_created,
        model=opened.model,
        choices=[
            AnswerChoice(message=msgspec.json.decode(inline(choice.message)), finish_reason=choice.finish_reason)
            for choice in closed.choices
        ],
        prompt_tokens=opened.prompt_tokens,
        cached_tokens=closed.cached_tokens,
        completion_tokens=sum(len(inline(choice.sampled_ids)) // 4 for choice in closed.choices),
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
