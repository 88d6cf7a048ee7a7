"""Which failure ended an agent's work: the same as by comparing each failed call with each answered one, and in one pass."""

from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from tests.support.builders import call_closed, call_failed, call_opened, choice
from tests.support.lines import lines_run

from evener.proto.reasons import INFRASTRUCTURE, CallFailure
from evener.proto.sessions import Placement, RootReason
from evener.tokens.forest import Call, Forest
from evener.tokens.last_failure import last_failure
from evener.tokens.place import nowhere

REASONS = (None, CallFailure.OVERLOADED, CallFailure.ENGINE_ERROR, CallFailure.CONTEXT_OVERFLOW, CallFailure.CANCELLED)


class Told(NamedTuple):
    """A call: its conversation, body and request, why it failed (None: it was answered), and how long that took."""

    conversation: int
    body: int
    request: int
    failure: CallFailure | None
    seconds: int = 0


def forest(calls: Sequence[Told]) -> Forest:
    """Return the forest of these calls, opened a second after each other."""
    made = Forest()
    for number, told in enumerate(calls, 1):
        placement = Placement(rule=1, root=RootReason.FIRST, conversation=f"conversation {told.conversation}")
        placed = structs.replace(nowhere(), placement=placement)
        opened = call_opened("t.0", placed, [], number=number, body_digest=str(told.body), request_id=f"r{told.request}")
        assert made.open(opened, number)
        if told.failure is None:
            assert made.close(call_closed(opened, [choice([1], {"role": "assistant"}, logprobs=[-0.1])]))
        else:
            assert made.fail(call_failed(opened, told.failure, failed_at=opened.opened_at + told.seconds + 0.5))
    return made


def by_comparing_all(made: Forest) -> CallFailure | None:
    """Return the same by the rule's own words."""
    calls, names = made.in_order(), made.conversations()
    order = list(dict.fromkeys(names[call.call_id] for call in calls))

    def goes_on(one: Call, failed: Call) -> bool:
        assert failed.failed is not None
        return failed.opened.request_id in one.requests or one.opened.opened_at >= failed.failed.failed_at

    def tells(one: Call, failed: Call) -> bool:
        older = order.index(names[one.call_id]) <= order.index(names[failed.call_id])
        return older or one.opened.body_digest == failed.opened.body_digest

    answered = [call for call in calls if call.answered]
    failed = [call for call in reversed(calls) if call.failed is not None and call.failed.reason is not CallFailure.CANCELLED]
    for call in failed:
        assert call.failed is not None
        if call.failed.reason in INFRASTRUCTURE and not any(tells(one, call) and goes_on(one, call) for one in answered):
            return call.failed.reason
    if not failed or failed[0].failed is None or any(goes_on(one, failed[0]) for one in answered):
        return None
    return failed[0].failed.reason


TOLD = st.builds(Told, st.integers(0, 3), st.integers(0, 3), st.integers(0, 5), st.sampled_from(REASONS), st.integers(0, 5))


@given(st.lists(TOLD, max_size=9))
def test_one_pass_finds_what_comparing_all_calls_finds(calls: list[Told]) -> None:
    made = forest(calls)
    assert last_failure(made, 1) == by_comparing_all(made)


def test_twice_as_many_failed_calls_are_twice_the_work() -> None:
    """The gateway asks on its loop: 2,000 answers and 2,000 failures stopped it for 1.6 s."""

    def work(count: int) -> int:
        answered = [Told(0, number, number, None) for number in range(count)]
        failed = [Told(0, count + number, count + number, CallFailure.CONTEXT_OVERFLOW) for number in range(count)]
        made = forest(answered + failed)
        return lines_run(lambda: last_failure(made, 1))

    assert work(400) < 2.5 * work(200)
