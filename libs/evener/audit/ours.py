"""I7: finds the faults of Evener in the attempt that counts. It uses none of the tables by which the services decide."""

from collections.abc import Iterator, Mapping, Sequence
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
        TerminationReason.WALL_TIME,
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
        if left.unanswered in OURS and not _went_on(built, left, records):
            yield f"a request had no answer for a reason of ours, and its agent did not go on: {left.unanswered}"
    for reason in sorted(_left_waiting(built, records)):
        yield f"a call that its agent waited for failed for a reason of ours: {reason}"


def _went_on(built: BuiltFacts, left: HarnessExited, records: Sequence[EventRecord]) -> bool:
    """Return whether one of the requests that came after an unserved one is of the session's main conversation."""
    opened = {event.call_id: event for event in _of_kind(records, CallOpened)}
    main = {_root(opened[call_id], opened) for call_id in built.main_calls if call_id in opened}
    later = [event for event in opened.values() if event.request_id in left.later_requests]
    return any(_root(event, opened) in main for event in later)


def _left_waiting(built: BuiltFacts, records: Sequence[EventRecord]) -> Iterator[CallFailure]:
    """Yield the failures of ours after which the agent did not go on.

    It went on if a later answer was given to an equal request, in the failed call's own conversation, or in the main one.
    """
    opened = {event.call_id: event for event in _of_kind(records, CallOpened)}
    own = [event for event in opened.values() if event.attempt == built.attempt and event.side_call is None]
    answered = {event.call_id for event in _of_kind(records, CallClosed) if is_whole(event)}
    again = {event.request_id for event in own if event.call_id in answered}
    roots = {event.call_id: _root(event, opened) for event in own}
    main = {roots[call_id] for call_id in built.main_calls if call_id in roots}
    for failed in _of_kind(records, CallFailed):
        if failed.reason not in OURS or failed.call_id not in roots or failed.request_id in again:
            continue
        call = opened[failed.call_id]
        later = [event for event in own if event.call_id in answered and event.opened_at >= failed.failed_at]
        counting = main | {roots[call.call_id]}
        if not any(event.body_digest == call.body_digest or roots[event.call_id] in counting for event in later):
            yield failed.reason


def _root(call: CallOpened, opened: Mapping[str, CallOpened]) -> str:
    """Return the conversation of a call, which its root names, or its root itself."""
    while (parent := call.placement.parent) is not None and parent.call_id in opened:
        call = opened[parent.call_id]
    return call.placement.conversation or call.call_id


def _of_kind(records: Sequence[EventRecord], kind: type[EventT]) -> list[EventT]:
    return [read.event for read in records if isinstance(read.event, kind)]
