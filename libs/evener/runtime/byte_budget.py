"""Limits the bytes of input that a process holds at a time, for all senders together."""

import asyncio
from collections import deque
from typing import Final

from evener.runtime.turns import Turns


class ByteBudget:
    """A number of bytes that may be held together. A caller that wants more waits for its turn, in the order of arrival.

    A single input that is larger than the whole budget is let in when nothing else is held. Callers that come together are let in over
    several iterations of the event loop.
    """

    def __init__(self, limit: int) -> None:
        self._limit: Final = limit
        self._held = 0
        self._turns: Final = Turns()
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size: int) -> "HeldBytes":
        """Wait until so many bytes may be held; return what gives them back."""
        await self._turns.wait()
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        self._let_in()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiting.remove((size, turn))
                self._let_in()
            else:
                self.give_back(size)
            raise
        return HeldBytes(self, size)

    def give_back(self, size: int) -> None:
        """Let others have these bytes."""
        self._held -= size
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and (self._held == 0 or self._held + self._waiting[0][0] <= self._limit):
            size, turn = self._waiting.popleft()
            if turn.done():  # cancelled, and not yet gone
                self._waiting.appendleft((size, turn))
                return
            self._held += size
            turn.set_result(None)


class HeldBytes:
    """A part of the budget, held until it is released."""

    def __init__(self, budget: ByteBudget, size: int) -> None:
        self._budget = budget
        self._size = size

    def shrink(self, size: int) -> None:
        """Give back all but so many."""
        if size < self._size:
            self._budget.give_back(self._size - size)
            self._size = size

    def release(self) -> None:
        """Give all bytes back. Further calls have no effect."""
        self.shrink(0)
