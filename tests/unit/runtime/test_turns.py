"""Tasks that are woken together, and go on a few at a time."""

import asyncio
from itertools import pairwise

from evener.runtime.turns import TURNS_PER_ITERATION, Turns


async def test_callers_that_come_together_go_on_over_several_iterations_in_their_order() -> None:
    """A thousand sessions that end together stopped the loop for 160 ms."""
    turns, gone_on = Turns(), list[int]()

    async def come(number: int) -> None:
        await turns.wait()
        gone_on.append(number)

    coming = [asyncio.create_task(come(number)) for number in range(100)]
    seen = [0]
    while seen[-1] < len(coming):
        await asyncio.sleep(0)
        seen.append(len(gone_on))
    await asyncio.gather(*coming)

    assert gone_on == sorted(gone_on)
    assert max(after - before for before, after in pairwise(seen)) <= TURNS_PER_ITERATION
    assert len(seen) < len(coming)


async def test_who_leaves_the_queue_takes_no_turn() -> None:
    """And those behind it go on."""
    turns = Turns()
    waiting = [asyncio.create_task(turns.wait()) for _ in range(5 * TURNS_PER_ITERATION)]
    await asyncio.sleep(0)
    for one in waiting[:-1]:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)

    assert not waiting[-1].cancelled()
