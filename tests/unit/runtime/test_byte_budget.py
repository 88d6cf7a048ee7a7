"""How many bytes a process holds together."""

import asyncio

import pytest

from evener.runtime.byte_budget import ByteBudget


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
