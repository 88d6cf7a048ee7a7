"""A walk that goes on from the last one reads what a walk from the start would read."""

import tracemalloc
from typing import Any

from hypothesis import given, settings
from tests.support.generated import Harness, Step, steps
from tests.support.world import World, user

from evener.proto.sessions import SegmentRef
from evener.proto.spec import PolicyOptions
from evener.tokens.history import History

SYSTEM = {"role": "system", "content": "be good"}


def test_an_answer_that_is_sampled_after_its_copy_was_read_is_recognised() -> None:
    """A harness brings a turn of its own, while the policy samples the very same there."""
    world = World()
    foreign = {"role": "assistant", "content": "the end"}
    history = [SYSTEM, user("a"), foreign, user("b")]
    world.ask(history, "first")
    sampling = world.open([SYSTEM, user("a")])
    before, _ = world.open(history)
    world.close(*sampling, ["the end"])
    after, _ = world.open(history)

    assert before.placement.parent is None
    assert after.placement.parent == SegmentRef(call_id="c2")


def test_a_history_is_read_alike_whatever_was_read_before() -> None:
    """Two conversations take turns, so that each finds the other's walk."""
    world = World()
    talks = [[SYSTEM, user("a")], [SYSTEM, user("b")]]
    for turn in range(4):
        for talk in talks:
            talk += [world.ask(talk, f"so {turn}"), user(f"go {turn}")]

    assert [call.placement.parent is None for call in world.session.forest.in_order()] == [True, True] + [False] * 6


@settings(max_examples=300)
@given(steps)
def test_going_on_from_the_last_walk_reads_what_a_walk_from_the_start_reads(plan: list[Step]) -> None:
    """After each step of whatever a harness does, for each of its conversations."""
    harness = Harness()
    for name, which, number in plan:
        getattr(harness, name)(harness.talks[which % len(harness.talks)], number)
        for talk in harness.talks:
            assert read(harness, talk) == read(harness, talk, afresh=True)


def read(harness: Harness, talk: list[dict[str, Any]], *, afresh: bool = False) -> tuple[Any, ...]:
    """Read a conversation and leave the index as it was."""
    history: History = harness.world.history
    walked = history._walked
    if afresh:
        history._walked = None
    reading = history.read(talk, harness.tools, PolicyOptions())
    history._walked = walked
    return list(reading.messages), reading.deepest, reading.known, reading.known_count, reading.answered, reading.cuts


def test_messages_before_the_first_user_message_are_held_once() -> None:
    """Each held all before it: ten thousand of them stopped the gateway's loop for a second, and took half a gigabyte."""
    count = 6000
    world = World()
    world.odd_glue = True  # no render of each history
    placed, opened = world.open([*({"role": "system", "content": f"{number}"} for number in range(count)), user("a")])
    tracemalloc.start()
    try:
        world.close(placed, opened, ["the end"])
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < count * count
    assert world.session.forest.calls["c1"].answered
