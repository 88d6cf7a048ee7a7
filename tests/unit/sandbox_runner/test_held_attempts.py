"""The attempts that a runner holds, under any order of dispatches, repeats and ends."""

from hypothesis import given
from hypothesis import strategies as st
from tests.support import builders
from tests.support.builders import alone

from evener.proto.fleet import Running
from evener.proto.sessions import SessionDispatched
from evener.sandbox_runner.core import REMEMBERED, HeldAttempts

STEPS = st.lists(st.tuples(st.sampled_from(["dispatch", "end"]), st.sampled_from(["s", "t"]), st.integers(1, 3)), max_size=30)


def dispatched(session_id: str, attempt: int) -> SessionDispatched:
    return builders.dispatched(session_id, alone(session_id), attempt=attempt, boot_id="b")


@given(STEPS)
def test_each_attempt_is_started_once_whatever_is_repeated_and_in_whatever_order(steps: list[tuple[str, str, int]]) -> None:
    """A dispatch that is read again after its attempt has ended starts nothing either."""
    held, started, ended = HeldAttempts("r", "b"), set[Running](), set[Running]()
    for step, session_id, number in steps:
        attempt = Running(session_id=session_id, attempt=number)
        if step == "dispatch":
            assert held.take(dispatched(session_id, number)) is (attempt not in started | ended)
            started.add(attempt)
        elif attempt in started:
            held.release(attempt)
            ended.add(attempt)
        assert set(held.running) == started - ended


@given(STEPS)
def test_new_attempt_ends_the_earlier_ones_of_its_session_that_are_held_and_no_others(steps: list[tuple[str, str, int]]) -> None:
    """Neither a later one, whose dispatch was read first, nor one of another session."""
    held = HeldAttempts("r", "b")
    for step, session_id, number in steps:
        if step == "dispatch":
            held.take(dispatched(session_id, number))
            earlier = {one for one in held.running if one.session_id == session_id and one.attempt < number}
            assert set(held.superseded(dispatched(session_id, number))) == earlier
        else:
            held.release(Running(session_id=session_id, attempt=number))


def test_what_is_remembered_of_ended_attempts_is_bounded() -> None:
    """The oldest is forgotten first: its dispatch is far behind what is read by then."""
    held = HeldAttempts("r", "b")
    for number in range(1, REMEMBERED + 2):
        held.release(Running(session_id="s", attempt=number))

    assert held.take(dispatched("s", 1))
    assert not held.take(dispatched("s", 2))
    assert held.running == (Running(session_id="s", attempt=1),)
