"""The failures of Evener that kept an agent from going on. Each call is looked at once, however many failed."""

from collections import defaultdict
from collections.abc import Iterable
from math import inf

from evener.proto.reasons import INFRASTRUCTURE, CallFailure
from evener.proto.sessions import HarnessExited
from evener.tokens.forest import Call
from evener.tokens.kinds import Conversations
from evener.tokens.session import SessionLog


def unserved(session: SessionLog, left: HarnessExited) -> CallFailure | None:
    """Return why a request of the agent had no answer although the log may not know it, or None. `left`: what its runner reported.

    A later request of the main conversation excuses it: the agent went on. One of any other conversation, such as a title, does not.
    """
    if left.unanswered is None:
        return None
    known = Conversations(session)
    later = (call for request_id in left.later_requests for call in session.forest.of_request(request_id))
    went_on = any(_tells(call) and known.of(call.call_id) in known.main for call in later)
    return None if went_on else left.unanswered


def last_failure(session: SessionLog) -> CallFailure | None:
    """Return the failure in the log that kept the agent of the current attempt from going on, or None. The exit code does not matter.

    A fault of Evener's counts unless an equal request was answered, or the failed call's own conversation or its step's main one went on
    after it: the agent saw its sub-agent fail. An answer in any other conversation says nothing about the agent that waited. Any other
    failure counts if no call is opened after it and answered.
    """
    calls = [call for call in session.forest.in_order() if call.opened.attempt == session.attempt and call.opened.side_call is None]
    failed = [call for call in reversed(calls) if call.failed is not None and call.failed.reason is not CallFailure.CANCELLED]
    if not failed:
        return None
    answers = _Answers((call for call in calls if call.answered), Conversations(session))
    for call in failed:
        if (reason := answers.unanswered(call)) in INFRASTRUCTURE:
            return reason
    return answers.never_answered(failed[0])


def _tells(call: Call) -> bool:
    """Return whether a call shows that its agent went on: it was answered, or refused because a budget is spent."""
    return call.answered or (call.failed is not None and call.failed.reason is CallFailure.BUDGET)


class _Answers:
    """The answered calls of an attempt."""

    def __init__(self, answered: Iterable[Call], known: Conversations) -> None:
        self._known = known
        self._opened: defaultdict[str | None, float] = defaultdict(lambda: -inf)
        """When the last answered call of a conversation was opened, by the conversation's name."""
        self._repeated: defaultdict[str, float] = defaultdict(lambda: -inf)
        """When the last answered call with a body was opened, by the body's digest."""
        self._requests: set[str] = set()
        """The answered requests."""
        for call in answered:
            name, digest = known.of(call.call_id), call.opened.body_digest
            self._opened[name] = max(self._opened[name], call.opened.opened_at)
            self._repeated[digest] = max(self._repeated[digest], call.opened.opened_at)
            self._requests |= call.requests

    def unanswered(self, call: Call) -> CallFailure | None:
        """Return the failure of a call, or None if its agent went on."""
        own = self._opened[self._known.of(call.call_id)]
        main = self._opened[self._known.main_in(call.opened.step)]
        return self._unless(call, max(own, main, self._repeated[call.opened.body_digest]))

    def never_answered(self, call: Call) -> CallFailure | None:
        """Return the failure of a call, or None if any call that was opened after it was answered."""
        return self._unless(call, max(self._opened.values(), default=-inf))

    def _unless(self, call: Call, went_on_at: float) -> CallFailure | None:
        if call.failed is None or call.opened.request_id in self._requests or went_on_at >= call.failed.failed_at:
            return None
        return call.failed.reason
