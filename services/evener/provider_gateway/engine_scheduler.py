"""Assigns engines to calls. No I/O: `engines` reports the state of each engine, and calls take slots.

A call waits for admission before its body is read (`admit`), waits in the queue once it is placed (`slots`), and then holds a slot.
The scheduler knows the holders: when an engine is given up, their use of its slots ends with EngineUnreachable.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from msgspec import Struct, field
from opentelemetry import trace

from evener.proto.errors import Recoverable
from evener.proto.fleet import EngineJoined
from evener.proto.spec import Target
from evener.provider_gateway.engine_handle import EngineHandle, EngineSlots
from evener.service.tracing import step

AVOIDED_SECONDS: Final = 10.0
"""How long an engine that failed a call is used only if there is no other."""
SESSIONS_REMEMBERED: Final = 10_000
PASSED_OVER: Final = 8
"""How often a waiting call lets others go first, whose prefixes are in the cache of the engine that has room."""

tracer = trace.get_tracer("evener.provider_gateway")


class NoEngine(Recoverable):
    """Restart the engine, or add another one; /readyz names those that do not answer."""


class AdmissionPermit(Struct, eq=False):
    """Admits one call. Until it is released, it reserves the slot that the call has not taken yet."""

    released: Callable[[], None] = lambda: None
    asked_at: float = field(default_factory=time.time)
    issued_at: float = field(default_factory=time.time)
    _open: bool = True

    def release(self) -> None:
        """Release the permit: the call waits in the queue now, has an engine, or needs none. A second release does nothing."""
        if self._open:
            self._open = False
            self.released()


class _Unadmitted(Struct, eq=False):
    """A call that waits for admission."""

    targets: frozenset[Target]
    turn: asyncio.Future[AdmissionPermit] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class _Waiting(Struct, eq=False):
    """A call in the queue, or (`only`) a call that has this engine and waits for another slot at it."""

    target: Target
    used: str | None
    """The engine that last sampled for its session."""
    only: EngineHandle | None = None
    began: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    passed: int = 0
    """How often a later call went first."""
    turn: asyncio.Future[EngineHandle] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def may_have(self, engine: EngineHandle) -> bool:
        """Return whether the engine can serve the call."""
        return _fits(engine.joined, self.target) if self.only is None else self.only is engine


class EngineScheduler:
    """Admits calls and gives them engines, in the order of their arrival except for prefix caches. The waits are not the agent's time."""

    def __init__(self, *, queue: int, patience_seconds: float) -> None:
        """`queue`: how many calls may wait. `patience_seconds`: how long they wait while no engine that could serve them answers."""
        self.engines: dict[str, EngineHandle] = {}
        """The checked engines by id."""
        self._queue = queue
        self._patience_seconds = patience_seconds
        self._permits = 0
        """The number of permits that are not released."""
        self._unadmitted: deque[_Unadmitted] = deque()
        self._line: deque[_Waiting] = deque()
        self._used: dict[str, str] = {}
        """The engine that last sampled for each session."""

    @property
    def waiting(self) -> int:
        """The number of calls that wait for an engine."""
        return len(self._line)

    def longest_context(self, target: Target) -> int | None:
        """Return the longest context, in tokens, of the engines that serve the target. None: no engine is known."""
        return max((engine.facts.context_length for engine in self.engines.values() if _fits(engine.joined, target)), default=None)

    async def admit(self, targets: frozenset[Target], seconds: float) -> AdmissionPermit | None:
        """Wait until a call that may go to these targets can be admitted. None: that took longer than `seconds`.

        The call is admitted if an engine is free for it or the queue has room, and if no call for the same targets waits before it.
        """
        if self._has_room(targets) and not any(call.targets == targets for call in self._unadmitted):
            return self._issue()
        call = _Unadmitted(targets)
        self._unadmitted.append(call)
        try:
            await asyncio.wait([call.turn], timeout=seconds)
            return call.turn.result() if call.turn.done() else None
        except asyncio.CancelledError:
            if call.turn.done():
                call.turn.result().release()
            raise
        finally:
            if call in self._unadmitted:
                self._unadmitted.remove(call)

    @asynccontextmanager
    async def slots(self, target: Target, session_id: str, permit: AdmissionPermit) -> AsyncIterator[EngineSlots]:
        """Wait for an engine of the target; yield the slot at it. Raises NoEngine; the block may end with EngineUnreachable.

        A session stays with its engine, whose prefix cache knows its history, as long as that engine has room.
        """
        began = time.monotonic()
        with step(tracer, "wait"):
            used = self._used.get(session_id)
            engine = await self._take_slot(self._free(target, used), _Waiting(target, used), permit)
        self._remember(session_id, engine)
        slots = EngineSlots(engine, time.monotonic() - began, partial(self.another, engine))
        try:
            with slots.in_use():
                yield slots
        finally:
            self._give_back(engine)

    @asynccontextmanager
    async def another(self, engine: EngineHandle) -> AsyncIterator[None]:
        """Wait, in the same queue as all others, for one more slot at an engine that a call has."""
        waiting = _Waiting(Target(), engine.joined.engine_id, only=engine)
        await self._take_slot(engine if engine.free else None, waiting, AdmissionPermit())
        try:
            yield
        finally:
            self._give_back(engine)

    def offer(self, engine: EngineHandle) -> None:
        """Give an engine's free slots, unless it has left, to those who wait for them."""
        while self.engines.get(engine.joined.engine_id) is engine and engine.free and (waiting := self._next(engine)) is not None:
            self._line.remove(waiting)
            engine.taken += 1
            waiting.turn.set_result(engine)
        self._let_in()

    async def _take_slot(self, free: EngineHandle | None, waiting: _Waiting, permit: AdmissionPermit) -> EngineHandle:
        """Take a slot at a free engine, or wait for one in the queue."""
        if free is not None:
            free.taken += 1
        else:
            self._line.append(waiting)
        permit.release()
        return free or await self._turn(waiting)

    def _give_back(self, engine: EngineHandle) -> None:
        engine.taken -= 1
        self.offer(engine)

    async def _turn(self, waiting: _Waiting) -> EngineHandle:
        """Wait in the queue. Raises NoEngine. A turn that came together with an error goes to the next call."""
        try:
            while not waiting.turn.done():
                await asyncio.wait({waiting.turn}, timeout=self._patience_left(waiting))
            return waiting.turn.result()
        except BaseException:
            if waiting.turn.done():
                self._give_back(waiting.turn.result())
            else:
                self._line.remove(waiting)
                self._let_in()
            raise

    def _patience_left(self, waiting: _Waiting) -> float | None:
        """Return the seconds after which to check again. Raises NoEngine if no engine has answered for too long."""
        if waiting.only is not None:
            return None  # its call has the engine: when that is given up, so is the call
        serving = [one.silent_since for one in self.engines.values() if waiting.may_have(one) and not one.draining]
        silent = [since for since in serving if since is not None]
        if len(silent) < len(serving):  # one answers: it is busy, and may take as long as it takes
            return self._patience_seconds
        left = max(waiting.began, *silent, float("-inf")) + self._patience_seconds - asyncio.get_running_loop().time()
        if left <= 0:
            msg = f"no engine of {waiting.target.policy or waiting.target.frozen} has answered for {self._patience_seconds:.0f} s"
            raise NoEngine(msg)
        return left

    def _next(self, engine: EngineHandle) -> _Waiting | None:
        """Return the call that gets an engine: the first queued, unless it prefers another engine and a later call prefers this one."""
        fitting = [one for one in self._line if not one.turn.done() and one.may_have(engine)]
        if not fitting or fitting[0].passed >= PASSED_OVER:
            return fitting[0] if fitting else None
        place = next((place for place, one in enumerate(fitting) if self._at_home(one, engine)), 0)
        for one in fitting[:place]:
            one.passed += 1
        return fitting[place]

    def _at_home(self, waiting: _Waiting, engine: EngineHandle) -> bool:
        """Return whether no other available engine knows its prefixes."""
        own = None if waiting.used is None else self.engines.get(waiting.used)
        return own is None or own is engine or not own.usable

    def _free(self, target: Target, used: str | None) -> EngineHandle | None:
        """Return an engine with room: preferably one that failed no call recently, then the session's own, then the idlest."""
        fitting = [one for one in self.engines.values() if one.free and _fits(one.joined, target)]
        lately = asyncio.get_running_loop().time() - AVOIDED_SECONDS
        return min(fitting, key=lambda one: (one.failed_at > lately, one.joined.engine_id != used, one.taken), default=None)

    def _remember(self, session_id: str, engine: EngineHandle) -> None:
        self._used.pop(session_id, None)
        self._used[session_id] = engine.joined.engine_id
        if len(self._used) > SESSIONS_REMEMBERED:
            del self._used[next(iter(self._used))]

    def _has_room(self, targets: Collection[Target]) -> bool:
        """Return whether another call for these targets would find a free engine, or room in the queue."""
        engines = [one for one in self.engines.values() if one.usable and any(_fits(one.joined, target) for target in targets)]
        free = sum(max(0, one.limit - one.taken) for one in engines)
        return free + self._queue - sum(one.only is None for one in self._line) > self._permits

    def _let_in(self) -> None:
        """Admit the calls for which there is room now."""
        full: set[frozenset[Target]] = set()
        for call in list(self._unadmitted):
            if call.targets in full:
                continue
            if self._has_room(call.targets):
                self._unadmitted.remove(call)
                call.turn.set_result(self._issue())
            else:
                full.add(call.targets)

    def _issue(self) -> AdmissionPermit:
        self._permits += 1
        return AdmissionPermit(self._take_back)

    def _take_back(self) -> None:
        self._permits -= 1
        self._let_in()


def _fits(joined: EngineJoined, target: Target) -> bool:
    return joined.policy == target.policy if target.policy is not None else joined.engine_id == target.frozen
