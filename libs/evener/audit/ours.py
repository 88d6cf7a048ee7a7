"""I7: finds the faults of Evener in the attempt that counts. It uses none of the tables by which the services decide."""

from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

from evener.audit.answers import is_whole
from evener.audit.built import BuiltFacts
from evener.audit.snapshot import EventRecord
from evener.proto.reasons import CallFailure, TerminationReason
from evener.proto.sessions import CallClosed, CallFailed, CallOpened, HarnessExited

EventT = TypeVar("EventT")

AGENTS_ENDS: Final = frozenset(
    {
        TerminationReason.FINISHED,
        TerminationReason.HARNESS_FAILED,
        TerminationReason.AGENT_TIME,
        TerminationReason.TOKEN_BUDGET,
        TerminationReason.CALL_BUDGET,
        TerminationReason.TURN_BUDGET,
        TerminationReason.CONTEXT_OVERFLOW,
        TerminationReason.LOOPING,
    }
)
OURS: Final = frozenset(
    {
        CallFailure.ENGINE_UNREACHABLE,
        CallFailure.ENGINE_ERROR,
        CallFailure.NOT_COMMITTED,
        CallFailure.OWNER_LOST,
        CallFailure.OVERLOADED,
        CallFailure.REFUSED,
    }
)


def met_of_ours(built: BuiltFacts, records: Sequence[EventRecord]) -> Iterator[str]:
    """Yield what forbids that a session is trained."""
    if built.termination_reason not in AGENTS_ENDS:
        yield f"it ended by {built.termination_reason}, which is not the agent's doing"
    if not built.own_tokens:
        yield "its agent sampled nothing"
    exits = [left for left in _of_kind(records, HarnessExited) if left.attempt == built.attempt][:1]
    told = {(failed.reason, failed.detail) for left in exits for failed in left.failures}
    answered = {event.request_id for event in _of_kind(records, CallClosed) if is_whole(event)}
    failed = [event for event in _of_kind(records, CallFailed) if event.attempt == built.attempt]
    told |= {(event.reason, event.detail) for event in failed if event.request_id not in answered}
    for reason, detail in sorted(told):
        if reason is CallFailure.REFUSED:
            yield f"one of its calls was refused: {detail}"
    for left in exits:
        if left.unanswered in OURS:
            yield f"its last request had no answer for a reason of ours: {left.unanswered}"
    last = _last_call(built.attempt, records)
    if last in OURS:
        yield f"its last call failed for a reason of ours: {last}"


def _last_call(attempt: int, records: Sequence[EventRecord]) -> CallFailure | None:
    """Return why the last call of the agent failed. None: it was answered, or there is none."""
    own = [event for event in _of_kind(records, CallOpened) if event.attempt == attempt and event.side_call is None]
    failed = {event.call_id: event.reason for event in _of_kind(records, CallFailed)}
    answered = {event.call_id for event in _of_kind(records, CallClosed) if is_whole(event)}
    ends = [failed.get(event.call_id) for event in own if event.call_id in answered or event.call_id in failed]
    while ends and ends[-1] is CallFailure.CANCELLED:
        ends.pop()
    return ends[-1] if ends else None


def _of_kind(records: Sequence[EventRecord], kind: type[EventT]) -> list[EventT]:
    return [read.event for read in records if isinstance(read.event, kind)]
