"""Blocks that what runs beside them can end."""

import asyncio
from typing import NoReturn

import pytest

from evener.runtime.interrupt import ended_by


async def failing() -> NoReturn:
    await asyncio.sleep(0)
    msg = "the work"
    raise LookupError(msg)


async def test_an_error_of_the_work_ends_the_block() -> None:
    """Its task is not cancelled afterwards."""
    with pytest.raises(LookupError, match="the work"):
        async with ended_by(failing()):
            await asyncio.Event().wait()

    await asyncio.sleep(0)


async def test_the_end_of_the_block_cancels_the_work_and_waits_for_it() -> None:
    """What the work holds is released before the block is left."""
    began, ended = asyncio.Event(), asyncio.Event()

    async def working() -> NoReturn:
        try:
            began.set()
            await asyncio.get_running_loop().create_future()
            raise AssertionError
        finally:
            await asyncio.sleep(0)
            ended.set()

    async with ended_by(working()):
        await began.wait()

    assert ended.is_set()


async def test_an_error_of_the_block_is_its_own() -> None:
    """The work has nothing to do with it."""

    async def block() -> None:
        async with ended_by(failing()):
            msg = "the block"
            raise ValueError(msg)

    with pytest.raises(ValueError, match="the block"):
        await block()
