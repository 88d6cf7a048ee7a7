"""Tasks that run together: what their caller sees of an error."""

import asyncio
from collections.abc import Awaitable

import pytest
from tests.support.loop import forever, turns

from evener.runtime.tasks import Tasks

TROUBLE = LookupError("trouble")


async def fail() -> None:
    raise TROUBLE


async def together(ended: asyncio.Event, block: Awaitable[None]) -> None:
    """Run a block beside a task that only ends when it is cancelled."""

    async def wait() -> None:
        try:
            await forever()
        finally:
            ended.set()

    async with Tasks() as tasks:
        tasks.create_task(wait())
        await asyncio.sleep(0)
        await block


async def test_first_error_is_raised_itself_and_ends_the_other_tasks() -> None:
    """A caller catches the errors that it knows, and not groups of them."""
    ended = asyncio.Event()

    with pytest.raises(LookupError) as raised:
        await together(ended, fail())

    assert raised.value is TROUBLE
    assert ended.is_set()


async def test_error_of_a_task_of_a_task_is_raised_itself() -> None:
    async def nested() -> None:
        async with Tasks() as tasks:
            tasks.create_task(fail())

    with pytest.raises(LookupError) as raised:
        await together(asyncio.Event(), nested())

    assert raised.value is TROUBLE


async def test_cancellation_stays_a_cancellation() -> None:
    ended = asyncio.Event()
    running = asyncio.ensure_future(together(ended, forever()))
    await turns()
    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running

    assert ended.is_set()


async def test_cancellation_is_not_lost_to_an_error_at_the_same_moment() -> None:
    """A gateway that was fenced while it stopped took its partition over again, and never ended."""

    async def fail_at_the_end() -> None:
        try:
            await forever()
        finally:
            raise TROUBLE

    async def begin() -> None:
        async with Tasks() as tasks:
            tasks.create_task(fail_at_the_end())

    task = asyncio.create_task(begin())
    await turns()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
