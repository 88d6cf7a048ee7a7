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
    budget = ByteBudget(100).share()
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
    budget = ByteBudget(100).share()
    small = await budget.take(1)
    large = asyncio.create_task(budget.take(1000))
    await turns()
    assert not large.done()
    small.release()
    (await large).release()
    (await budget.take(100)).release()


async def test_who_leaves_the_queue_holds_nothing_and_lets_the_next_in() -> None:
    """Whether its turn had come or not."""
    budget = ByteBudget(100).share()
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
    budget = ByteBudget(1000).share()
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


async def test_what_one_sender_holds_is_never_in_the_way_of_what_the_others_own() -> None:
    """One session must not make all others wait."""
    budget = ByteBudget(800, shares=4)
    greedy, others = budget.share(), [budget.share() for _ in range(3)]
    held = await greedy.take(300)  # its own, and half of what is lent
    more = asyncio.create_task(greedy.take(1))
    await turns()
    assert not more.done()
    for other in others:
        async with asyncio.timeout(5):
            (await other.take(100)).release()
            await other.take(100)
    held.shrink(299)
    await more


async def test_what_is_lent_is_not_lent_to_one_alone() -> None:
    """The second borrows what the first has left."""
    budget = ByteBudget(800, shares=4)
    first, second = budget.share(), budget.share()
    await first.take(300)
    await second.take(200)
    waiting = asyncio.create_task(second.take(1))
    await turns()
    assert not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_input_larger_than_all_that_is_lent_comes_in_when_nothing_is_lent() -> None:
    """Or it would never. What the others hold of their own is no reason to wait."""
    budget = ByteBudget(800, shares=4)
    borrowing, waiting, third = budget.share(), budget.share(), budget.share()
    await third.take(100)
    lent = await borrowing.take(101)
    large = asyncio.create_task(waiting.take(2000))
    await turns()
    assert not large.done()
    lent.release()
    (await large).release()
    await borrowing.take(300)


async def test_input_that_grows_waits_before_those_that_hold_nothing() -> None:
    """What it holds is given back the sooner."""
    share = ByteBudget(100).share()
    growing, other = await share.take(10), await share.take(90)
    later = asyncio.create_task(share.take(10))
    await turns()
    grown = asyncio.create_task(growing.grow(100))
    await turns()
    assert not grown.done()
    other.release()
    await grown
    assert not later.done()
    await growing.grow(50)
    growing.release()
    await later
