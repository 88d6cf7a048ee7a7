"""Progress for watchers."""

import asyncio

from evener.scheduler.watch import Watch


async def test_watchers_of_a_scheduler_that_stops_are_let_go() -> None:
    """One that crashed and was opened again in its process has another watch: nothing would ever come from this one."""
    watch = Watch()
    watching = asyncio.ensure_future(anext(watch.follow(None, 0), "ended"))
    await asyncio.sleep(0)
    watch.end()

    async with asyncio.timeout(60):
        assert await watching == "ended"
        assert await anext(watch.follow(None, 0), "ended") == "ended"
