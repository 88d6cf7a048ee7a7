"""Who has an engine to sample with, and who waits for one. No I/O: what becomes of engines is told by `engines`."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Final

from evener.engines.port import Engine, EngineFacts, EngineUnreachable, LogprobRule
from evener.proto.errors import Recoverable
from evener.proto.fleet import EngineJoined
from evener.proto.spec import Target
from evener.provider_gateway.admission import Admission, Ticket
from evener.provider_gateway.pauses import Pauses

AVOIDED_SECONDS: Final = 10.0
"""For so long an engine that failed a call is asked only where there is no other."""
SESSIONS_REMEMBERED: Final = 10_000
PASSED_OVER: Final = 8
"""So often a call that waits lets others go first whose prefixes are in the engine that has room."""


class NoEngine(Recoverable):
    """Start the engine again, or add another; /readyz names those that do not answer."""


class Member:
    """An engine of the fleet, as `fleet` has it: also while it is being checked."""

    def __init__(self, joined: EngineJoined) -> None:
        self.joined = joined
        """The last record: limits may change."""
        self.draining = False


class Pooled:
    """One checked engine, with its limit."""

    def __init__(
        self,
        member: Member,
        engine: Engine,
        facts: EngineFacts,
        rule: LogprobRule,
        pauses: Pauses,
        *,
        unfit: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.engine = engine
        self.facts = facts
        self.rule = rule
        self.unfit = unfit
        """Of a frozen engine: the policies whose runs may not name it, and why."""
        self.pauses = pauses
        self.open = 0
        """Places that calls have: one for each answer that is sampled."""
        self.silent_since: float | None = None
        """Since when it gets no calls because it does not answer, by the loop's clock. None: it answers."""
        self.failed_at = float("-inf")
        """When it last failed a call, by the same clock."""
        self.suspected = asyncio.Event()
        """It is to be probed now."""
        self._member = member
        self._given_up = asyncio.Event()

    @property
    def joined(self) -> EngineJoined:
        """What `fleet` says of it now."""
        return self._member.joined

    @property
    def draining(self) -> bool:
        """Whether it gets no calls any more, but ends those that it has."""
        return self._member.draining

    @property
    def usable(self) -> bool:
        """Whether it gets calls when it has room."""
        return self.silent_since is None and not self.draining

    @property
    def free(self) -> bool:
        """Whether it would get the next call."""
        return self.usable and self.open < self.joined.max_concurrency

    def avoid(self) -> None:
        """Note that it failed a call: for a while others are asked first."""
        self.failed_at = asyncio.get_running_loop().time()

    def suspect(self) -> None:
        """Note that it does not answer: until a probe finds it well it gets no calls."""
        self.avoid()
        self.silent_since = self.failed_at if self.silent_since is None else self.silent_since
        self.suspected.set()

    def give_up(self) -> None:
        """End the calls that it has: they are to go elsewhere."""
        self._given_up.set()
        self._given_up = asyncio.Event()

    async def until_given_up(self) -> None:
        """Wait until its calls are to end. Then raises EngineUnreachable."""
        await self._given_up.wait()
        msg = f"engine {self.joined.engine_id} is gone"
        raise EngineUnreachable(msg)


class _Waiting:
    """A call that waits for an engine, or (`only`) that has this one and waits for another place at it."""

    def __init__(self, target: Target, used: str | None, *, only: Pooled | None = None) -> None:
        self.target = target
        self.used = used
        """The engine that sampled for its session last."""
        self.only = only
        self.began = asyncio.get_running_loop().time()
        self.passed = 0
        """How often another that came later went first."""
        self.turn: asyncio.Future[Pooled] = asyncio.get_running_loop().create_future()

    def may_have(self, pooled: Pooled) -> bool:
        """Return whether an engine would do."""
        return _fits(pooled.joined, self.target) if self.only is None else self.only is pooled


class Slots:
    """Gives engines to calls. They wait in the order of their arrival, but for prefix caches; that time is not the agent's."""

    def __init__(self, *, queue: int, patience_seconds: float) -> None:
        """`queue`: calls that may wait. `patience_seconds`: how long, while no engine answers that could serve them."""
        self.engines: dict[str, Pooled] = {}
        """Those that are checked, by id."""
        self.admission = Admission(self._room)
        self._queue = queue
        self._patience_seconds = patience_seconds
        self._waiting: deque[_Waiting] = deque()
        self._used: dict[str, str] = {}
        """By session: the engine that sampled for it last."""

    @asynccontextmanager
    async def slot(self, target: Target, session_id: str, ticket: Ticket) -> AsyncIterator[tuple[Pooled, float]]:
        """Wait for an engine of the target; yield it and the seconds waited. Raises NoEngine.

        A session stays with its engine, whose prefix cache knows its history, as long as that has room.
        """
        began = time.monotonic()
        used = self._used.get(session_id)
        pooled = self._free(target, used)
        if pooled is None:
            pooled = await self._turn(target, used, ticket)
        else:
            pooled.open += 1
            ticket.give_back()
        self._remember(session_id, pooled)
        try:
            yield pooled, time.monotonic() - began
        finally:
            pooled.open -= 1
            self.offer(pooled)

    @asynccontextmanager
    async def another(self, pooled: Pooled) -> AsyncIterator[None]:
        """Wait, in line with all others, for one more place at an engine that a call has.

        For a call of several answers: it takes a place for each that is sampled beside others, and needs none beyond its first.
        """
        if pooled.free:
            pooled.open += 1
        else:
            waiting = _Waiting(Target(), pooled.joined.engine_id, only=pooled)
            self._waiting.append(waiting)
            async with self._in_line(waiting):
                await asyncio.wait({waiting.turn})
        try:
            yield
        finally:
            pooled.open -= 1
            self.offer(pooled)

    def offer(self, pooled: Pooled) -> None:
        """Give the room that an engine has, unless it has left, to those who wait for it."""
        while self.engines.get(pooled.joined.engine_id) is pooled and pooled.free and (waiting := self._next(pooled)) is not None:
            self._waiting.remove(waiting)
            pooled.open += 1
            waiting.turn.set_result(pooled)
        self.admission.let_in()

    async def _turn(self, target: Target, used: str | None, ticket: Ticket) -> Pooled:
        """Wait in line. Raises NoEngine."""
        waiting = _Waiting(target, used)
        self._waiting.append(waiting)
        ticket.give_back()
        async with self._in_line(waiting):
            while not waiting.turn.done():
                await asyncio.wait({waiting.turn}, timeout=self._patience_left(waiting))
            return waiting.turn.result()

    @asynccontextmanager
    async def _in_line(self, waiting: _Waiting) -> AsyncIterator[None]:
        """Give the place in line, or the turn that came just now, to others if this block is left by an error."""
        try:
            yield
        except BaseException:
            if waiting.turn.done():
                waiting.turn.result().open -= 1
                self.offer(waiting.turn.result())
            else:
                self._waiting.remove(waiting)
                self.admission.let_in()
            raise

    def _patience_left(self, waiting: _Waiting) -> float:
        """Return after how many seconds to look again. Raises NoEngine if none has answered for too long."""
        loop = asyncio.get_running_loop()
        serving = [one.silent_since for one in self.engines.values() if _fits(one.joined, waiting.target) and not one.draining]
        silent = [since for since in serving if since is not None]
        if len(silent) < len(serving):  # one answers: it is busy, and may take as long as it takes
            return self._patience_seconds
        left = max(waiting.began, *silent) + self._patience_seconds - loop.time() if silent else waiting.began + self._patience_seconds
        if left <= 0:
            msg = f"no engine of {waiting.target.policy or waiting.target.frozen} has answered for {self._patience_seconds:.0f} s"
            raise NoEngine(msg)
        return left

    def _room(self, targets: Collection[Target]) -> int:
        """Return how many more calls for these targets would find a free engine, or a place in the queue."""
        engines = [one for one in self.engines.values() if one.usable and any(_fits(one.joined, target) for target in targets)]
        free = sum(max(0, one.joined.max_concurrency - one.open) for one in engines)
        return free + self._queue - sum(one.only is None for one in self._waiting)

    def _free(self, target: Target, used: str | None) -> Pooled | None:
        """Return an engine with room: one that failed no call of late, the session's own, the idlest, in this order."""
        fitting = [one for one in self.engines.values() if one.free and _fits(one.joined, target)]
        lately = asyncio.get_running_loop().time() - AVOIDED_SECONDS
        return min(fitting, key=lambda one: (one.failed_at > lately, one.joined.engine_id != used, one.open), default=None)

    def _next(self, pooled: Pooled) -> _Waiting | None:
        """Return who is to have an engine: the first in line, unless its own is another one and somebody waits for this."""
        fitting = [one for one in self._waiting if not one.turn.done() and one.may_have(pooled)]
        if not fitting or fitting[0].passed >= PASSED_OVER:
            return fitting[0] if fitting else None
        place = next((place for place, one in enumerate(fitting) if self._at_home(one, pooled)), 0)
        for one in fitting[:place]:
            one.passed += 1
        return fitting[place]

    def _at_home(self, waiting: _Waiting, pooled: Pooled) -> bool:
        """Return whether no other engine knows its prefixes, as far as it could be had."""
        own = None if waiting.used is None else self.engines.get(waiting.used)
        return own is None or own is pooled or not own.usable

    def _remember(self, session_id: str, pooled: Pooled) -> None:
        self._used.pop(session_id, None)
        self._used[session_id] = pooled.joined.engine_id
        if len(self._used) > SESSIONS_REMEMBERED:
            del self._used[next(iter(self._used))]


def _fits(joined: EngineJoined, target: Target) -> bool:
    return joined.policy == target.policy if target.policy is not None else joined.engine_id == target.frozen
