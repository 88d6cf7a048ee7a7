"""Who comes in: a call is let in before anything of it is read, if an engine is free for it or the queue has room. Others are held."""

import asyncio
from collections import deque
from collections.abc import Callable, Collection

from evener.proto.spec import Target

Room = Callable[[Collection[Target]], int]
"""How many more calls for these targets would find a free engine, or a place in the queue."""


class Ticket:
    """Lets one call in. Until it is given back, it takes a place that the call itself does not take yet."""

    def __init__(self, used: Callable[[], None] = lambda: None) -> None:
        self._used = used
        self._given_back = False

    def give_back(self) -> None:
        """The call waits for an engine now, or needs none. Giving back twice is giving back once."""
        if not self._given_back:
            self._given_back = True
            self._used()


class Admission:
    """The door of one gateway. Calls that are held come in in the order of their arrival."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._tickets = 0
        """Given out, and not given back."""
        self._held: deque[tuple[frozenset[Target], asyncio.Future[Ticket]]] = deque()

    async def ticket(self, targets: frozenset[Target], seconds: float) -> Ticket | None:
        """Wait until a call that may go to these targets can come in. None: that took longer than `seconds`."""
        if self._has_room(targets) and not any(held == targets for held, _ in self._held):
            return self._issue()
        turn: asyncio.Future[Ticket] = asyncio.get_running_loop().create_future()
        self._held.append((targets, turn))
        try:
            await asyncio.wait([turn], timeout=seconds)
            return turn.result() if turn.done() else None
        except asyncio.CancelledError:
            if turn.done():
                turn.result().give_back()
            raise
        finally:
            if (targets, turn) in self._held:
                self._held.remove((targets, turn))

    def let_in(self) -> None:
        """Let in whom there is room for now."""
        full: set[frozenset[Target]] = set()
        for targets, turn in list(self._held):
            if targets in full:
                continue
            if self._has_room(targets):
                self._held.remove((targets, turn))
                turn.set_result(self._issue())
            else:
                full.add(targets)

    def _has_room(self, targets: frozenset[Target]) -> bool:
        return self._room(targets) > self._tickets

    def _issue(self) -> Ticket:
        self._tickets += 1
        return Ticket(self._take_back)

    def _take_back(self) -> None:
        self._tickets -= 1
        self.let_in()
