"""Lets tasks go on a few at a time: what hundreds of them do next, all in one iteration of the event loop, would stop it."""

import asyncio
from collections import deque
from typing import Final

TURNS_PER_ITERATION: Final = 8


class Turns:
    """Callers that come together go on over several iterations of the event loop, in the order of their arrival."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._now = 0
        """How many went on at this iteration."""

    async def wait(self) -> None:
        """Return now, or at a later iteration if many came before."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._let_go_on()
        await turn

    def _let_go_on(self) -> None:
        while self._waiting and self._now < TURNS_PER_ITERATION:
            turn = self._waiting.popleft()
            if turn.done():  # cancelled
                continue
            turn.set_result(None)
            if not self._now:
                asyncio.get_running_loop().call_soon(self._next_iteration)
            self._now += 1

    def _next_iteration(self) -> None:
        self._now = 0
        self._let_go_on()
