"""Limits the bytes of input that a process holds at a time, for all senders together."""

import asyncio
from collections import deque
from typing import Final

from evener.runtime.turns import Turns


class ByteBudget:
    """A number of bytes that may be held together, divided into `shares`.

    Half of it is the shares' own, in equal parts: for these bytes a share waits for its own inputs alone, whatever the others hold. The
    other half is lent, to each share at most as much as it leaves to lend. Inputs that come together are let in over several iterations of
    the event loop.
    """

    def __init__(self, limit: int, shares: int = 1) -> None:
        self._turns: Final = Turns()
        self._own: Final = limit // (2 * shares) if shares > 1 else limit
        self._lendable: Final = limit - shares * self._own
        self._lent = 0
        self._waiting: dict[ByteShare, None] = {}
        """The shares with inputs that wait, in the order of their arrival."""

    def share(self) -> "ByteShare":
        """Return a part of the budget, for one sender."""
        return ByteShare(self)

    async def turn(self) -> None:
        """Wait until one more input may be looked at."""
        await self._turns.wait()

    def borrow(self, held: int, size: int) -> bool:
        """Let a share that holds so many bytes hold `size` more, if there is room for those that are not its own."""
        before, after = max(0, held - self._own), max(0, held + size - self._own)
        if after == before:
            return True
        is_first = held == 0 and self._lent == 0  # or an input that is larger than all that is lent would never come in
        if not is_first and after > self._lendable - (self._lent + after - before):
            return False
        self._lent += after - before
        return True

    def give_back(self, held: int, size: int) -> None:
        """Take `size` bytes back from a share that holds so many, and let inputs in that waited for them."""
        self._lent -= max(0, held - self._own) - max(0, held - size - self._own)
        for share in list(self._waiting):
            share.let_in()

    def note(self, share: "ByteShare", *, waits: bool) -> None:
        """Note whether a share has inputs that wait."""
        if waits:
            self._waiting.setdefault(share)
        else:
            self._waiting.pop(share, None)


class ByteShare:
    """One sender's part of a budget. Its inputs wait for their turn in the order of arrival.

    A single input that is larger than the share may ever hold is let in when it is the only one, and nothing is lent.
    """

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._held = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def hold(self) -> "HeldBytes":
        """Return what is held for an input: nothing yet."""
        return HeldBytes(self)

    async def take(self, size: int) -> "HeldBytes":
        """Wait until so many bytes may be held; return what gives them back."""
        held = self.hold()
        await held.grow(size)
        return held

    async def wait(self, size: int, *, first: bool) -> None:
        """Wait until so many more bytes may be held. `first`: before the inputs that wait and hold nothing."""
        await self._budget.turn()
        turn = asyncio.get_running_loop().create_future()
        if first:
            self._waiting.appendleft((size, turn))
        else:
            self._waiting.append((size, turn))
        self.let_in()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiting.remove((size, turn))
                self.let_in()
            else:
                self.give_back(size)
            raise

    def give_back(self, size: int) -> None:
        """Let others have these bytes."""
        held, self._held = self._held, self._held - size
        self._budget.give_back(held, size)

    def let_in(self) -> None:
        """Let in what there is room for."""
        while self._waiting and not self._waiting[0][1].done():  # done: cancelled, and not yet gone
            size, turn = self._waiting[0]
            if not self._budget.borrow(self._held, size):
                break
            self._waiting.popleft()
            self._held += size
            turn.set_result(None)
        self._budget.note(self, waits=bool(self._waiting))


class HeldBytes:
    """What is held of a share for one input, until it is released."""

    def __init__(self, share: ByteShare) -> None:
        self._share = share
        self._size = 0

    async def grow(self, size: int) -> None:
        """Wait until so many bytes may be held in all."""
        if size > self._size:
            await self._share.wait(size - self._size, first=self._size > 0)
            self._size = size

    def shrink(self, size: int) -> None:
        """Give back all but so many."""
        if size < self._size:
            given_back, self._size = self._size - size, size
            self._share.give_back(given_back)

    def release(self) -> None:
        """Give all bytes back. Further calls have no effect."""
        self.shrink(0)
