"""How many bytes a process holds together."""

import asyncio
from itertools import pairwise

import pytest

from evener.runtime.byte_budget import ByteBudget
from evener.runtime.turns import TURNS_PER_ITERATION


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_who_wants_more_than_is_left_waits_and_the_order_is_kept() -> None:
    """A small input does not overtake a large one for ever."""
    budget = ByteBudget(100)
    first = await budget.take(80)
    large, small = asyncio.create_task(budget.take(60)), asyncio.create_task(budget.take(10))
    await turns()
    assert not large.done()
    assert not small.done()
    first.release()
    first.release()

    held = await asyncio.gather(large, small)
    waiting = asyncio.create_task(budget.take(40))
    await turns()
    assert not waiting.done()
    held[0].shrink(20)
    await waiting


async def test_input_larger_than_the_budget_comes_in_alone() -> None:
    """Or it would never."""
    budget = ByteBudget(100)
    small = await budget.take(1)
    large = asyncio.create_task(budget.take(1000))
    await turns()
    assert not large.done()
    small.release()
    (await large).release()
    (await budget.take(100)).release()


async def test_who_leaves_the_queue_holds_nothing_and_lets_the_next_in() -> None:
    """Whether its turn had come or not."""
    budget = ByteBudget(100)
    first = await budget.take(100)
    leaving, next_one = asyncio.create_task(budget.take(90)), asyncio.create_task(budget.take(90))
    await turns()
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    late = asyncio.create_task(budget.take(90))
    await turns()
    first.release()
    next_one.cancel()  # its turn has come, and it does not know yet
    with pytest.raises(asyncio.CancelledError):
        await next_one
    await late


async def test_callers_that_come_together_are_let_in_over_several_iterations_of_the_loop() -> None:
    """Each of two hundred requests does a part of a millisecond's work next: all of it at once stopped the loop for 70 ms."""
    budget = ByteBudget(1000)
    let_in = 0

    async def come() -> None:
        nonlocal let_in
        await budget.take(1)
        let_in += 1

    coming = [asyncio.create_task(come()) for _ in range(100)]
    seen = [0]
    while seen[-1] < len(coming):
        await asyncio.sleep(0)
        seen.append(let_in)
    assert max(after - before for before, after in pairwise(seen)) <= TURNS_PER_ITERATION < len(coming) / 10
    assert len(seen) < len(coming)
    await asyncio.gather(*coming)
