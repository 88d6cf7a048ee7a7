"""Calls at once share what is left of a budget."""

import asyncio

from evener.provider_gateway.spending import Spending


async def test_calls_at_once_cannot_overspend_together() -> None:
    """The second gets what the first left; the third waits until one of them ends with less."""
    spending, sampled = Spending(), 0

    def left() -> int:
        return 100 - sampled

    assert await spending.promise("a", wish=70, choices=1, left=left) == 70
    assert await spending.promise("b", wish=70, choices=1, left=left) == 30
    third = asyncio.create_task(spending.promise("c", wish=70, choices=1, left=left))
    await asyncio.sleep(0.01)
    assert not third.done()
    sampled += 10
    spending.free("a")
    assert await third == 60


async def test_choices_divide_what_is_left() -> None:
    spending = Spending()
    assert await spending.promise("a", wish=70, choices=4, left=lambda: 100) == 25


async def test_the_last_call_before_the_budget_is_spent_gets_at_least_a_token() -> None:
    """More answers than tokens left: the call was admitted, so each answer has one."""
    assert await Spending().promise("a", wish=70, choices=4, left=lambda: 3) == 1
