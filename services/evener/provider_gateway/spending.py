"""The tokens of a session's budget that are promised to open calls, so that calls at once cannot overspend it together."""

import asyncio
from collections.abc import Callable


class Spending:
    """Of one session."""

    def __init__(self) -> None:
        self._promised: dict[str, int] = {}
        self._freed = asyncio.Event()

    async def promise(self, call_id: str, *, wish: int, choices: int, left: Callable[[], int]) -> int:
        """Return how many tokens each answer may have: at most `wish`, and together no more than what is left and not promised.

        Waits while everything that is left is promised to others. 0: nothing is left. `left`: tokens of the budget that no closed call
        sampled.
        """
        while (free := left() - sum(self._promised.values())) < choices and self._promised:
            self._freed.clear()
            await self._freed.wait()
        if free < 1:
            return 0
        tokens = max(1, min(wish, free // choices))
        self._promised[call_id] = tokens * choices
        return tokens

    def free(self, call_id: str) -> None:
        """Give back what an ended call was promised."""
        self._promised.pop(call_id, None)
        self._freed.set()
