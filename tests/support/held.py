"""Fault points at which a test holds what passes."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from tests.support.waiting import SECONDS

from evener.runtime.faults import at_point, at_point_in_thread


class Held:
    """Holds all that passes a point of the event loop, until it is let go."""

    def __init__(self) -> None:
        self._reached = asyncio.Event()
        self._let_go = asyncio.Event()

    async def reached(self) -> None:
        """Wait until something stands at the point."""
        async with asyncio.timeout(SECONDS):
            await self._reached.wait()

    def let_go(self) -> None:
        """Let it pass, and all that follows."""
        self._let_go.set()

    async def __call__(self) -> None:
        self._reached.set()
        await self._let_go.wait()


class HeldThread:
    """Holds all threads that pass a point, until they are let go."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._let_go = threading.Event()

    async def reached(self) -> None:
        """Wait until a thread stands at the point; the loop goes on meanwhile."""
        assert await asyncio.to_thread(self._reached.wait, SECONDS), "no thread came"

    def let_go(self) -> None:
        """Let them pass, and all that follow."""
        self._let_go.set()

    def __call__(self) -> None:
        self._reached.set()
        assert self._let_go.wait(SECONDS), "the loop waits for the thread"


Hold = Callable[[str], Held]
"""From the name of a point to what holds it until the test ends."""
HoldThread = Callable[[str], HeldThread]


@pytest.fixture
def hold() -> Iterator[Hold]:
    with ExitStack() as stack:

        def held(name: str) -> Held:
            stack.enter_context(at_point(name, holding := Held()))
            return holding

        yield held


@pytest.fixture
def hold_thread() -> Iterator[HoldThread]:
    with ExitStack() as stack:

        def held(name: str) -> HeldThread:
            stack.enter_context(at_point_in_thread(name, holding := HeldThread()))
            stack.callback(holding.let_go)
            return holding

        yield held
