"""Explains what went wrong with an attempt's calls: for the termination reason, and in words. Pure."""

from collections.abc import Sequence

from evener.proto.reasons import END_POLICY, INFRASTRUCTURE, UNSERVED, CallFailure, TerminationReason
from evener.proto.sessions import HarnessExited
from evener.tokens.forest import Call


def failures(calls: Sequence[Call], left: HarnessExited) -> dict[CallFailure, str]:
    """Return, by reason, what the last failed request of an attempt was answered. A failed request that was answered later does not count.

    `calls` are those of the attempt, in the order of the log. The runner's report adds requests that were refused before they were placed.
    """
    answered = {request_id for call in calls if call.answered for request_id in call.requests}
    met = [call.failed for call in calls if call.failed is not None and call.opened.request_id not in answered]
    return {failed.reason: failed.detail for failed in met} | {failed.reason: failed.detail for failed in left.failures}


def nothing_sampled(calls: Sequence[Call]) -> bool:
    """Return whether no call of the agent itself sampled a token."""
    return not any(call.sampled_tokens for call in calls if call.opened.side_call is None)


def why(end: TerminationReason, calls: Sequence[Call], left: HarnessExited) -> str:
    """Return in words why an attempt ended: what its harness reported, and which failures of Evener or of its first prompt it met."""
    met = failures(calls, left)
    match end:
        case TerminationReason.REFUSED:
            return _first_of(UNSERVED, met)
        case TerminationReason.INFRASTRUCTURE:
            said = [left.detail, _first_of(INFRASTRUCTURE, met)]
        case _ if END_POLICY[end].trainable and nothing_sampled(calls):
            said = [_nothing(calls, met), left.detail]
        case _:
            return left.detail
    return "; ".join(dict.fromkeys(filter(None, said)))


def _nothing(calls: Sequence[Call], met: dict[CallFailure, str]) -> str:
    if CallFailure.CONTEXT_OVERFLOW in met:
        return f"its first prompt did not fit the context: {met[CallFailure.CONTEXT_OVERFLOW]}"
    if met:
        reason, told = next(reversed(met.items()))
        return f"none of its calls was answered: {reason} ({told})" if told else f"none of its calls was answered: {reason}"
    return "no call of its agent was answered" if calls else "its harness made no model call"


def _first_of(reasons: frozenset[CallFailure], met: dict[CallFailure, str]) -> str:
    return next((told or reason.value for reason, told in met.items() if reason in reasons), "")
