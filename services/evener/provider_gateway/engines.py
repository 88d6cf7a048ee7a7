"""The engines that may be used now: joined and left by `fleet`, checked before the first call, with a limit on each."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, TypeVar

import structlog

from evener.bus.port import Bus, Record
from evener.engines.check import check_engine
from evener.engines.open import open_engine
from evener.engines.port import Engine, EngineFacts, EngineRefused, EngineUnreachable, LogprobRule
from evener.proto.codec import BadRecord
from evener.proto.errors import EvenerError, Hopeless, Recoverable
from evener.proto.fleet import EngineDraining, EngineJoined, EngineLeft
from evener.proto.spec import Target
from evener.proto.topics import Topic
from evener.service.events import EventLog
from evener.service.published import Published
from evener.templates.port import Renderer

RETRY_SECONDS: Final = 1.0
"""Between tries to reach an engine that has joined but does not answer."""
TELL_SECONDS: Final = 30.0
"""Between two warnings of that."""

AVOIDED_SECONDS: Final = 10.0
"""For so long an engine that did not answer is asked only where there is no other."""
SESSIONS_REMEMBERED: Final = 10_000

Got = TypeVar("Got")

log = structlog.get_logger()


class QueueFull(Recoverable):
    """More calls wait for an engine than the gateway holds. Add engines, or run fewer sessions at once."""


class Behind(Recoverable):
    """The trainer-bridge loads the version into it, if it can; its log says why not."""


class RequiredEngineRefused(Hopeless):
    """This process has no other engine: mend that one, or name another."""


class Pooled:
    """One checked engine, with its limit."""

    def __init__(self, joined: EngineJoined, engine: Engine, facts: EngineFacts, rule: LogprobRule) -> None:
        self.joined = joined
        self.engine = engine
        self.facts = facts
        self.rule = rule
        self.draining = False
        self.open = 0
        self.failed_at = float("-inf")
        """When it last did not answer, by the loop's clock."""
        self.gone = asyncio.Event()

    async def until_gone(self) -> None:
        """Wait until the engine has left. Then raises EngineUnreachable: its calls are to go elsewhere."""
        await self.gone.wait()
        msg = f"engine {self.joined.engine_id} left"
        raise EngineUnreachable(msg)


class EnginePool:
    """Who samples for a policy. Calls wait in the order of their arrival; time in the queue is not the agent's."""

    def __init__(self, bus: Bus, events: EventLog, renderers: Mapping[str, Renderer], *, queue: int, required: str | None) -> None:
        self._bus = bus
        self._events = events
        self._published = Published(bus, events)
        self._renderers = renderers
        self._queue = queue
        self._pooled: dict[str, Pooled] = {}
        self._required = required
        self._required_refused: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._joining: dict[str, tuple[EngineJoined, asyncio.Task[None]]] = {}
        self._waiting: deque[tuple[Target, asyncio.Future[Pooled]]] = deque()
        self._used: dict[str, str] = {}
        """By session: the engine that sampled for it last."""
        self.refused: dict[str, str] = {}
        """Engine id to why its tokens cannot be trained."""
        self.absent: dict[str, str] = {}
        """Engine id to why it cannot be asked yet."""

    def ready(self) -> dict[str, bool]:
        """Return whether any engine may be used; a refused one is named with its reason, and an absent one where there is no other."""
        absent = {} if self._pooled else {f"engine {name} absent: {why}": False for name, why in self.absent.items()}
        return {"engine": bool(self._pooled)} | {f"engine {name} refused: {why}": False for name, why in self.refused.items()} | absent

    async def lacks_what_is_required(self) -> None:
        """Wait for ever, unless the required engine is refused. Raises RequiredEngineRefused."""
        raise RequiredEngineRefused(await self._required_refused)

    async def follow(self) -> None:
        """Follow `fleet` for ever: engines join, drain and leave."""
        start = await self._bus.end(Topic.FLEET, 0)
        for record in (await self._bus.last_values(Topic.FLEET, 0)).values():
            await self._heed(record)
        try:
            async for batch in self._bus.follow(Topic.FLEET, 0, start):
                for record in batch:
                    await self._heed(record)
        finally:
            await self.aclose()

    @asynccontextmanager
    async def slot(self, target: Target, session_id: str) -> AsyncIterator[tuple[Pooled, float]]:
        """Wait for an engine of the target; yield it and the seconds waited. Raises QueueFull.

        A session stays with its engine, whose prefix cache knows its history, as long as that has room.
        """
        began = time.monotonic()
        pooled = self._free(target, self._used.get(session_id))
        if pooled is None:
            if len(self._waiting) >= self._queue:
                msg = f"{len(self._waiting)} calls wait for an engine"
                raise QueueFull(msg)
            turn: asyncio.Future[Pooled] = asyncio.get_running_loop().create_future()
            self._waiting.append((target, turn))
            try:
                pooled = await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._give_back(turn.result())
                elif (target, turn) in self._waiting:
                    self._waiting.remove((target, turn))
                raise
        else:
            pooled.open += 1
        self._remember(session_id, pooled)
        try:
            yield pooled, time.monotonic() - began
        finally:
            self._give_back(pooled)

    def avoid(self, pooled: Pooled) -> None:
        """Note that an engine did not answer: for a while others are asked first."""
        pooled.failed_at = asyncio.get_running_loop().time()

    async def aclose(self) -> None:
        """Close the connections to all engines."""
        for name in {*self._joining, *self._pooled}:
            await self._leave(name)

    def _free(self, target: Target, used: str | None = None) -> Pooled | None:
        fitting = [p for p in self._pooled.values() if _fits(p.joined, target) and not p.draining and p.open < p.joined.max_concurrency]
        silent = asyncio.get_running_loop().time() - AVOIDED_SECONDS
        return min(fitting, key=lambda one: (one.failed_at > silent, one.joined.engine_id != used, one.open), default=None)

    def _remember(self, session_id: str, pooled: Pooled) -> None:
        self._used.pop(session_id, None)
        self._used[session_id] = pooled.joined.engine_id
        if len(self._used) > SESSIONS_REMEMBERED:
            del self._used[next(iter(self._used))]

    def _give_back(self, pooled: Pooled) -> None:
        pooled.open -= 1
        self._wake()

    def _wake(self) -> None:
        for target, turn in list(self._waiting):
            if turn.done():
                self._waiting.remove((target, turn))
            elif (pooled := self._free(target)) is not None:
                pooled.open += 1
                turn.set_result(pooled)
                self._waiting.remove((target, turn))

    async def _heed(self, record: Record) -> None:
        if record.value is None:
            return
        try:
            event = await self._events.event(record)
        except BadRecord as bad:
            log.error("bad_fleet_record", offset=record.offset, error=str(bad))
            return
        match event:
            case EngineJoined():
                await self._meet(event)
            case EngineDraining():
                if (pooled := self._pooled.get(event.engine_id)) is not None:
                    pooled.draining = True
            case EngineLeft():
                await self._leave(event.engine_id)
            case _:
                pass

    async def _meet(self, joined: EngineJoined) -> None:
        """Start to take an engine in. One that is known stays, unless it listens elsewhere now: then it is another process."""
        name = joined.engine_id
        known = self._joining[name][0] if name in self._joining else self._pooled[name].joined if name in self._pooled else None
        if known is not None and (known.url, known.kind, known.policy) == (joined.url, joined.kind, joined.policy):
            if (pooled := self._pooled.get(name)) is not None:  # its limits may be others now, and it is no longer draining
                pooled.joined, pooled.draining = joined, False
                self._wake()
            return
        await self._leave(name)
        self._joining[name] = (joined, asyncio.create_task(self._join(joined)))

    async def _join(self, joined: EngineJoined) -> None:
        """Check an engine and take it in. One that does not answer yet is tried again; one that fails the check is refused."""
        async with AsyncExitStack() as closing:
            engine = open_engine(joined)
            closing.push_async_callback(engine.aclose)
            try:
                facts, rule = await self._check(joined, engine)
            except EvenerError as refused:
                self._refuse(joined, str(refused))
                return
            finally:
                self.absent.pop(joined.engine_id, None)
                if self._joining.get(joined.engine_id, (None,))[0] is joined:
                    del self._joining[joined.engine_id]
            closing.pop_all()
        self._pooled[joined.engine_id] = Pooled(joined, engine, facts, rule)
        log.info("engine_joined", engine_id=joined.engine_id, kind=joined.kind, policy=joined.policy, version=facts.version)
        self._wake()

    async def _check(self, joined: EngineJoined, engine: Engine) -> tuple[EngineFacts, LogprobRule]:
        name = joined.policy or next(iter(self._renderers))
        renderer = self._renderers.get(name)
        if renderer is None:
            msg = f"engine {joined.engine_id} samples policy {name!r}, which this gateway has no template for"
            raise EngineRefused(msg)
        while True:
            before = await self._patiently(joined, lambda: self._current(joined, engine))
            try:
                rule = await self._patiently(joined, lambda: check_engine(engine, renderer))
            except EngineRefused:
                if (await self._patiently(joined, engine.facts)).version == before.version:
                    raise
                continue  # its weights were exchanged under the check
            return await self._patiently(joined, engine.facts), rule

    async def _current(self, joined: EngineJoined, engine: Engine) -> EngineFacts:
        """Return what the engine says of itself. Raises Behind while it has not got the newest version of its policy."""
        facts = await engine.facts()
        if joined.policy is not None:
            await self._published.refresh()
            newest = self._published.newest(joined.policy)
            if newest is not None and facts.version < newest:
                msg = f"it has version {facts.version} of {joined.policy}, and {newest} is published"
                raise Behind(msg)
        return facts

    async def _patiently(self, joined: EngineJoined, attempt: Callable[[], Awaitable[Got]]) -> Got:
        """Try until the engine answers; say at once and then now and again that it does not."""
        told = float("-inf")
        while True:
            try:
                return await attempt()
            except Recoverable as absent:
                self.absent[joined.engine_id] = str(absent)
                if time.monotonic() - told >= TELL_SECONDS:
                    told = time.monotonic()
                    log.warning("engine_absent", engine_id=joined.engine_id, url=joined.url, error=str(absent))
                await asyncio.sleep(RETRY_SECONDS)

    def _refuse(self, joined: EngineJoined, why: str) -> None:
        self.refused[joined.engine_id] = why
        log.error("engine_refused", engine_id=joined.engine_id, error=why)
        if joined.engine_id == self._required and not self._required_refused.done():
            self._required_refused.set_result(f"engine {joined.url} is refused: {why}")

    async def _leave(self, engine_id: str) -> None:
        self.refused.pop(engine_id, None)
        if engine_id in self._joining:
            _, task = self._joining.pop(engine_id)
            task.cancel()
            await asyncio.wait({task})
        if (pooled := self._pooled.pop(engine_id, None)) is not None:
            pooled.gone.set()
            await pooled.engine.aclose()


def _fits(joined: EngineJoined, target: Target) -> bool:
    return joined.policy == target.policy if target.policy is not None else joined.engine_id == target.frozen
