"""The failure that kept an agent from going on: each call is looked at once, however many failed."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import inf

from evener.proto.reasons import INFRASTRUCTURE, CallFailure
from evener.tokens.forest import Call, Forest


def last_failure(forest: Forest, attempt: int) -> CallFailure | None:
    """Return the failure that kept the agent of an attempt from going on, or None. The exit code does not matter.

    A fault of Evener's counts unless an answered call repeats the failed one, or was opened after it in the same conversation, or in an
    older one, whose agent saw a sub-agent fail. An answer in a younger conversation, such as a sub-agent's, says nothing about the agent
    that waited. Any other failure counts if no call is opened after it and answered.
    """
    calls = [call for call in forest.in_order() if call.opened.attempt == attempt and call.opened.side_call is None]
    failed = [call for call in reversed(calls) if call.failed is not None and call.failed.reason is not CallFailure.CANCELLED]
    if not failed:
        return None
    names = forest.conversations()
    begun = {name: age for age, name in enumerate(dict.fromkeys(names[call.call_id] for call in calls))}
    answers = _Answers((call for call in calls if call.answered), {call.call_id: begun[names[call.call_id]] for call in calls})
    for call in failed:
        if (reason := answers.unanswered(call)) in INFRASTRUCTURE:
            return reason
    return answers.never_answered(failed[0])


class _Answers:
    """The answered calls of an attempt."""

    def __init__(self, answered: Iterable[Call], ages: Mapping[str, int]) -> None:
        """`ages`: the place of each call's conversation among those of the attempt, the oldest first, by call id."""
        self._ages = ages
        self._opened = [-inf] * (max(ages.values()) + 1)
        """When the last answered call of a conversation, or of an older one, was opened, by the conversation's age."""
        self._repeated: defaultdict[str, float] = defaultdict(lambda: -inf)
        """When the last answered call with a body was opened, by the body's digest."""
        self._oldest: dict[str, int] = {}
        """The age of the oldest conversation in which a request was answered, by request id."""
        self._requests: set[tuple[str, str]] = set()
        """Answered requests with the digest of the body that was answered."""
        for call in answered:
            age, digest = ages[call.call_id], call.opened.body_digest
            self._opened[age] = max(self._opened[age], call.opened.opened_at)
            self._repeated[digest] = max(self._repeated[digest], call.opened.opened_at)
            self._oldest.update({request: min(age, self._oldest.get(request, age)) for request in call.requests})
            self._requests.update((request, digest) for request in call.requests)
        for age in range(1, len(self._opened)):
            self._opened[age] = max(self._opened[age], self._opened[age - 1])

    def unanswered(self, call: Call) -> CallFailure | None:
        """Return the failure of a call, or None if its conversation or an older one went on, or an equal call was answered."""
        age, request, digest = self._ages[call.call_id], call.opened.request_id, call.opened.body_digest
        same_request = self._oldest.get(request, age + 1) <= age or (request, digest) in self._requests
        return _unless(same_request, max(self._opened[age], self._repeated[digest]), call)

    def never_answered(self, call: Call) -> CallFailure | None:
        """Return the failure of a call, or None if its request was answered, or any call that was opened after it."""
        return _unless(call.opened.request_id in self._oldest, self._opened[-1], call)


def _unless(answered: bool, opened_at: float, call: Call) -> CallFailure | None:  # noqa: FBT001 - a private helper
    return None if call.failed is None or answered or opened_at >= call.failed.failed_at else call.failed.reason
