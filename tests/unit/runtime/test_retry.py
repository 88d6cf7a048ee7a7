"""Pauses between tries."""

import asyncio
from itertools import islice

import pytest

from evener.proto.errors import Recoverable
from evener.runtime.backoff import Backoff
from evener.runtime.retry import Dependency


def test_pauses_double_up_to_the_longest() -> None:
    """However many tries something that stays away has had: a double float has no 2 ** 1024."""
    pauses = Backoff(1.0, 60.0)

    assert [pauses.seconds(failures) for failures in (1, 2, 3, 9, 5000)] == [1.0, 2.0, 4.0, 60.0, 60.0]
    assert list(islice(Backoff(0.5, 10.0), 7)) == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


class Away(Recoverable):
    """It does not answer."""


async def test_outage_whose_answers_take_long_is_one_outage() -> None:
    """Each failure came so long after the one before that it began another outage, and the limit never passed."""
    asked = 0

    async def ask() -> None:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.05)
        raise Away

    async with asyncio.timeout(60):
        with pytest.raises(Away):
            await Dependency("slow", Backoff(0.001, 0.01)).ask(ask, 0.5)
    assert asked > 1
