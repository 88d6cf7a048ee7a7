"""What limits a call: its session's budgets, before it waits for an engine, then its engine's context. Raises Failure."""

from evener.dialects.canonical import Overflow, RequestError
from evener.proto.ends import CallFailure, End
from evener.provider_gateway.asked import Asked, Failure, too_long
from evener.provider_gateway.core import STOP_STATUS, answer_tokens, stop, unsupported
from evener.provider_gateway.live import Live
from evener.provider_gateway.open_call import OpenCall, Way


def admit(live: Live, asked: Asked, way: Way) -> None:
    """Count a call to its session's budgets, until `live.spending.free`. Raises Failure where there is no room, or the agent loops."""
    end = live.spending.admit(way.call_id, extends=way.placed.placement.parent is not None, answers=asked.request.n)
    if end is None and way.looping:
        end = End.LOOPING
    if end is not None:
        raise Failure(CallFailure.BUDGET, stop(end), detail=end)


def limit(call: OpenCall) -> int:
    """Return how many tokens each answer may have, by the engine that the call has now."""
    request, facts, used = call.asked.request, call.pooled.facts, call.opened.prompt_tokens
    if (error := unsupported(request, "the engine of this policy", vision=facts.vision)) is not None:
        raise Failure(CallFailure.REFUSED, error)
    if (differs := call.pooled.unfit.get(call.spec.policy)) is not None:
        engine_id = call.pooled.joined.engine_id
        raise Failure(
            CallFailure.REFUSED,
            RequestError(
                f"engine {engine_id} cannot serve a run of policy {call.spec.policy}: {differs}", field="model", status=STOP_STATUS
            ),
        )
    if facts.context_length - used < 1:
        text = f"this model's maximum context length is {facts.context_length} tokens; the messages have {used}"
        raise Failure(CallFailure.CONTEXT_OVERFLOW, too_long(call.asked, text, Overflow(asked=used, limit=facts.context_length)))
    tokens = answer_tokens(call.opened.sampling, request.max_tokens, facts.context_length - used)
    share = call.live.spending.share(call.opened.call_id)
    return tokens if share is None else min(tokens, share)
