"""The agent's clock against a count of unit steps."""

from hypothesis import given
from hypothesis import strategies as st

from evener.sandbox_runner.clock import AgentClock


class Time:
    """A time that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


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
