"""How many tokens an open call's answers may have; raises Failure where a budget or the context is spent."""

from evener.dialects.canonical import RequestError
from evener.proto.ends import CallFailure, End
from evener.proto.relay import Admitted
from evener.provider_gateway.asked import Failure
from evener.provider_gateway.core import STOP_STATUS, answer_tokens, looping, sampled_tokens, spent
from evener.provider_gateway.open_call import OpenCall


async def limit(call: OpenCall) -> int:
    """Return the limit of each answer. Waits while other open calls of the session are promised all that is left of its budget."""
    session, budgets, request = call.live.session, call.spec.budgets, call.asked.request
    if (end := spent(session, budgets, at_once=call.live.others(call.flight))) is not None:
        raise _spent(end)
    call.flight.counted = True
    if looping(request.messages, budgets.repeats):
        error = RequestError("the same tool call gave the same result too often", status=STOP_STATUS, kind="looping")
        raise Failure(CallFailure.BUDGET, error, detail=End.LOOPING)
    if request.images and not call.pooled.facts.vision:
        error = RequestError("the engine of this policy takes no images; send text only", field="messages", status=STOP_STATUS)
        raise Failure(CallFailure.REFUSED, error)
    length, used = call.pooled.facts.context_length, call.opened.prompt_tokens
    if length - used < 1:
        text = f"this model's maximum context length is {length} tokens; the messages have {used}"
        raise Failure(CallFailure.CONTEXT_OVERFLOW, RequestError(text, field="messages", kind="context_length_exceeded"))
    wish = answer_tokens(call.opened.sampling, request.max_tokens, length - used)
    if (budget := budgets.tokens) is None:
        return wish
    call.flight.put(Admitted(prompt_tokens=used))  # it waits for its own session now: no admission is outstanding
    tokens = await call.live.spending.promise(
        call.opened.call_id, wish=wish, choices=request.n, left=lambda: budget - sampled_tokens(session)
    )
    if not tokens:
        raise _spent(End.TOKEN_BUDGET)
    return tokens


def _spent(end: End) -> Failure:
    error = RequestError(f"this session's budget is spent ({end})", status=STOP_STATUS, kind="budget_spent")
    return Failure(CallFailure.BUDGET, error, detail=end)
