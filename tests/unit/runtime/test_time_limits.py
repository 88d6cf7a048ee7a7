"""Time limits that do not count everything."""

import asyncio
import time

from tests.support.waiting import eventually

from evener.runtime.time_limits import stopped

WAIT_SECONDS = 0.05


async def test_time_limit_ends_later_by_the_time_for_which_it_was_stopped() -> None:
    """It cannot expire in between either."""
    async with asyncio.timeout(60) as limit:
        due = limit.when() or 0.0
        with stopped(limit):
            assert limit.when() is None
            began = time.monotonic()
            await eventually(lambda: time.monotonic() - began > WAIT_SECONDS)
        assert (limit.when() or 0.0) > due + 0.9 * WAIT_SECONDS


async def test_wait_without_a_limit_has_none_afterwards() -> None:
    """None was set, so none is moved."""
    async with asyncio.timeout(None) as limit:
        with stopped(limit):
            await asyncio.sleep(0)
        assert limit.when() is None
