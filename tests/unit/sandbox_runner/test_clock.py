"""The agent's clock against a count of unit steps."""

from hypothesis import given
from hypothesis import strategies as st
from tests.support.loop import Time

from evener.sandbox_runner.clock import AgentClock


@given(st.lists(st.tuples(st.sampled_from(["begin", "end", "pass"]), st.integers(0, 2))))
def test_the_clock_stands_while_any_call_waits(steps: list[tuple[str, int]]) -> None:
    """Overlapping waits count once; beginning or ending twice changes nothing."""
    time = Time()
    clock = AgentClock(time)
    waiting: set[int] = set()
    counted = 0

    for step, call in steps:
        match step:
            case "begin":
                clock.begin(call)
                waiting.add(call)
            case "end":
                clock.end(call)
                waiting.discard(call)
            case _:
                time.now += 1
                counted += not waiting
        assert clock.seconds() == counted


def test_reported_waits_are_taken_out_once() -> None:
    """Two calls report the same two seconds of a weight update."""
    time = Time()
    clock = AgentClock(time)
    time.now += 5
    clock.take_out(2)
    clock.take_out(2)

    assert clock.seconds() == 3


def test_wait_that_is_reported_while_another_call_waits_counts_once() -> None:
    """The clock stands already."""
    time = Time()
    clock = AgentClock(time)
    time.now += 1
    clock.begin("held")
    time.now += 3
    clock.take_out(2)
    assert clock.seconds() == 1
    clock.end("held")
    time.now += 1

    assert clock.seconds() == 2


def test_reported_wait_that_began_before_the_clock_takes_nothing_out_twice() -> None:
    """The agent's time is never negative."""
    time = Time()
    clock = AgentClock(time)
    time.now += 1
    clock.take_out(60)

    assert clock.seconds() == 0
