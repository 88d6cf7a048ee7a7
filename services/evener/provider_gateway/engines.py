"""The engines of the fleet: checked before their first call, probed regularly, with the limits that `fleet` gives."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from functools import partial
from typing import Final, TypeVar

import structlog

from evener.bus.port import Bus
from evener.engines.check import check_engine, compare_tokenizers
from evener.engines.port import Engine, EngineError, EngineFacts, EngineRefused, LogprobRule
from evener.engines.registry import OPEN_ACCESS, EngineAccess, open_engine, open_weights
from evener.proto.codec import AnyEvent
from evener.proto.errors import EvenerError, Hopeless, Recoverable
from evener.proto.fleet import EngineDraining, EngineJoined, EngineLeft, PolicyPublished
from evener.provider_gateway.engine_handle import EngineHandle, Pauses, RegisteredEngine
from evener.provider_gateway.engine_scheduler import EngineScheduler
from evener.provider_gateway.engine_series import shown_engine
from evener.provider_gateway.timings import GatewayTimings
from evener.service.events import EventLog
from evener.service.fleet_feed import FleetFeed
from evener.service.published import Published, proven_label
from evener.service.telemetry import Metrics
from evener.templates.port import Renderer

WARNING_SECONDS: Final = 30.0
"""The interval of warnings that an engine cannot be used yet."""
FACTS_SECONDS: Final = 10.0
"""How long an engine that answers again has to report its facts."""

Got = TypeVar("Got")

log = structlog.get_logger()


class Behind(Recoverable):
    """The trainer-bridge loads and proves the version if it can; its log says why not."""


class RequiredEngineRefused(Hopeless):
    """This process has no other engine: mend the refused one, or name another."""


class EnginePool:
    """The engines that calls may use."""

    def __init__(
        self,
        bus: Bus,
        fleet: FleetFeed,
        events: EventLog,
        renderers: Mapping[str, Renderer],
        scheduler: EngineScheduler,
        *,
        required: str | None,
        metrics: Metrics,
        share: Callable[[int], int],
        changed: Callable[[], None],
        timings: GatewayTimings,
        access: EngineAccess = OPEN_ACCESS,
    ) -> None:
        """`share` returns this gateway's share of an engine's limit. `changed` is called when an engine comes into use, or leaves."""
        self._fleet = fleet
        self._published = Published(bus, events)
        self._renderers = renderers
        self._scheduler = scheduler
        self._required = required
        self._metrics = metrics
        self._share = share
        self._changed = changed
        self._timings = timings
        self._access = access
        self._required_refused: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._registered: dict[str, tuple[RegisteredEngine, asyncio.Task[None]]] = {}
        """Engines that have joined and are not refused, each with the task that checks and then probes it."""
        self.refused: dict[str, str] = {}
        """Engine id to the reason why its tokens cannot be trained."""
        self.absent: dict[str, str] = {}
        """Engine id to the reason why it cannot be used now."""

    def ready(self) -> dict[str, bool]:
        """Return whether any engine can be used. A refused engine is named with its reason, an absent one only if there is no other."""
        ready = any(one.silent_since is None for one in self._scheduler.engines.values())
        absent = {} if ready else {f"engine {name} absent: {why}": False for name, why in self.absent.items()}
        return {"engine": ready} | {f"engine {name} refused: {why}": False for name, why in self.refused.items()} | absent

    def reached(self) -> frozenset[str]:
        """Return the policies and frozen engines for which an engine answers, as heartbeats name them."""
        usable = (one.joined for one in self._scheduler.engines.values() if one.usable)
        return frozenset(joined.policy or f"frozen:{joined.engine_id}" for joined in usable)

    def offer_all(self) -> None:
        """Give the free slots of all engines: this gateway's shares may be larger now."""
        for handle in list(self._scheduler.engines.values()):
            self._scheduler.offer(handle)

    async def watch_required(self) -> None:
        """Wait until the required engine is refused. Raises RequiredEngineRefused."""
        raise RequiredEngineRefused(await self._required_refused)

    async def follow(self) -> None:
        """Follow `fleet` for ever: engines join, drain and leave."""
        try:
            async with aclosing(self._fleet.follow()) as batches:
                async for batch in batches:
                    for record in batch:
                        await self._heed(record.event)
        finally:
            for name in list(self._registered):
                await self._leave(name)

    async def _heed(self, event: AnyEvent | None) -> None:
        match event:
            case EngineJoined():
                await self._meet(event)
            case EngineDraining() if event.engine_id in self._registered:
                self._registered[event.engine_id][0].draining = True
            case EngineLeft():
                await self._leave(event.engine_id)
            case _:
                pass

    async def _meet(self, joined: EngineJoined) -> None:
        """Start to check an engine. A known engine stays, unless its record shows another process, such as another URL."""
        name = joined.engine_id
        registered, _ = self._registered.get(name, (None, None))
        if registered is not None and _identity(registered.joined) == _identity(joined):
            registered.joined, registered.draining = joined, False  # its limits may be others now
            if (handle := self._scheduler.engines.get(name)) is not None:
                self._scheduler.offer(handle)
            return
        await self._leave(name)
        registered = RegisteredEngine(joined)
        self._registered[name] = registered, asyncio.create_task(self._keep(registered))

    async def _keep(self, registered: RegisteredEngine) -> None:
        """Check an engine, use it, and probe it until it leaves. An engine that fails the check is refused."""
        joined = registered.joined
        try:
            async with (
                aclosing(open_engine(joined, self._access)) as engine,
                aclosing(Pauses(open_weights(joined, self._access))) as pauses,
            ):
                facts, rule, unfit = await self._check(registered, engine)
                log.info("engine_joined", engine_id=joined.engine_id, kind=joined.kind, policy=joined.policy, version=facts.version)
                handle = EngineHandle(registered, engine, facts, rule, pauses, unfit=unfit, share=self._share)
                with shown_engine(handle, self._metrics):
                    await self._serve(handle)
        except EvenerError as refused:
            self._refuse(registered, str(refused))

    async def _check(self, registered: RegisteredEngine, engine: Engine) -> tuple[EngineFacts, LogprobRule, dict[str, str]]:
        """Return an engine's facts, the settings with exact logprobs, and the policies that it does not fit, with the reasons."""
        joined = registered.joined
        unfit = await self._unfit(joined, engine) if joined.policy is None else {}
        name = joined.policy or next((one for one in self._renderers if one not in unfit), next(iter(self._renderers)))
        renderer = self._renderers.get(name)
        if renderer is None:
            msg = f"engine {joined.engine_id} samples policy {name!r}, which this gateway has no template for"
            raise EngineRefused(msg)
        while True:
            before = await self._patiently(joined, lambda: self._current(registered.joined, engine))
            try:
                rule = await self._patiently(joined, lambda: check_engine(engine, renderer))
            except EngineRefused:
                if (await self._patiently(joined, engine.facts)).version == before.version:
                    raise
                continue  # its weights were exchanged under the check
            return await self._patiently(joined, engine.facts), rule, unfit

    async def _unfit(self, joined: EngineJoined, engine: Engine) -> dict[str, str]:
        """Return the policies whose tokenizer a frozen engine does not have, and what differs: a run of any policy may name the engine."""
        unfit: dict[str, str] = {}
        for name, renderer in self._renderers.items():
            try:
                await self._patiently(joined, partial(compare_tokenizers, engine, renderer))
            except EngineRefused as differs:
                unfit[name] = str(differs)
                log.warning("engine_unfit", engine_id=joined.engine_id, policy=name, error=str(differs))
        return unfit

    async def _current(self, joined: EngineJoined, engine: Engine) -> EngineFacts:
        """Return the engine's facts. Raises Behind until it has proven the newest version of its policy."""
        facts = await engine.facts()
        if joined.policy is not None:
            await self._published.refresh()
            newest = self._published.current(joined.policy)
            if newest is not None and not _serves(facts, newest, joined):
                msg = f"it has {facts.label or facts.version}, and has not proven version {newest.version} of {joined.policy}"
                raise Behind(msg)
        return facts

    async def _patiently(self, joined: EngineJoined, attempt: Callable[[], Awaitable[Got]]) -> Got:
        """Try until the engine answers; warn at once, and then regularly, that it does not."""
        told = float("-inf")
        while True:
            try:
                return await attempt()
            except Recoverable as absent:
                self.absent[joined.engine_id] = str(absent)
                if time.monotonic() - told >= WARNING_SECONDS:
                    told = time.monotonic()
                    log.warning("engine_absent", engine_id=joined.engine_id, url=joined.url, error=str(absent))
                await asyncio.sleep(self._timings.engine_retry)

    async def _serve(self, handle: EngineHandle) -> None:
        """Give an engine calls until it leaves. While it does not answer it gets none, and after a while it loses those that it has."""
        name = handle.joined.engine_id
        self._scheduler.engines[name] = handle
        self._welcome(handle)
        loop = asyncio.get_running_loop()
        well_at = loop.time()
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._timings.engine_probe if handle.silent_since is None else self._timings.engine_retry):
                        await handle.suspected.wait()
                handle.suspected.clear()
                if await self._is_well(handle):
                    well_at = loop.time()
                elif handle.taken and loop.time() - well_at >= self._timings.engine_given_up:
                    log.warning("engine_given_up", engine_id=name, url=handle.joined.url, open_calls=handle.taken)
                    handle.give_up()
        finally:
            del self._scheduler.engines[name]
            handle.give_up()
            self._changed()

    async def _is_well(self, handle: EngineHandle) -> bool:
        """Probe an engine once. If it did not answer before, it must report its facts: it may be another process."""
        joined = handle.joined
        try:
            await handle.engine.health(self._timings.engine_health)
        except EngineError as silent:
            self._note_absent(joined, str(silent))
            handle.suspect()
            handle.suspected.clear()
            return False
        if handle.silent_since is not None:
            await self._ask_again(handle)
        return True

    async def _ask_again(self, handle: EngineHandle) -> None:
        """Give an engine calls again if it reports its facts."""
        joined = handle.joined
        try:
            async with asyncio.timeout(FACTS_SECONDS):
                handle.facts = await self._current(joined, handle.engine)
        except (EvenerError, TimeoutError) as absent:
            self._note_absent(joined, str(absent) or f"it is healthy, but did not describe itself within {FACTS_SECONDS:.0f} s")
        else:
            if not handle.suspected.is_set():
                self._welcome(handle)

    def _note_absent(self, joined: EngineJoined, why: str) -> None:
        if joined.engine_id not in self.absent:
            log.warning("engine_absent", engine_id=joined.engine_id, url=joined.url, error=why)
        self.absent[joined.engine_id] = why

    def _welcome(self, handle: EngineHandle) -> None:
        """Give an engine calls."""
        if self.absent.pop(handle.joined.engine_id, None) is not None:
            log.info("engine_answers", engine_id=handle.joined.engine_id, url=handle.joined.url)
        handle.silent_since = None
        self._scheduler.offer(handle)
        self._changed()

    def _refuse(self, registered: RegisteredEngine, why: str) -> None:
        joined = registered.joined
        del self._registered[joined.engine_id]
        self.absent.pop(joined.engine_id, None)
        self.refused[joined.engine_id] = why
        log.error("engine_refused", engine_id=joined.engine_id, error=why)
        if joined.engine_id == self._required and not self._required_refused.done():
            self._required_refused.set_result(f"engine {joined.url} is refused: {why}")

    async def _leave(self, engine_id: str) -> None:
        self.refused.pop(engine_id, None)
        if engine_id in self._registered:
            _, task = self._registered.pop(engine_id)
            task.cancel()
            await asyncio.wait({task})
        self.absent.pop(engine_id, None)


def _serves(facts: EngineFacts, newest: PolicyPublished, joined: EngineJoined) -> bool:
    """Return whether an engine has a version: by the label that the bridge gives at its proof, or without labels by the number."""
    return facts.version >= newest.version if facts.label is None else facts.label == proven_label(newest, joined)


def _identity(joined: EngineJoined) -> tuple[str, str, str | None, bool]:
    return joined.url, joined.kind, joined.policy, joined.vision
