"""The engines of the fleet: checked before the first call, probed now and then, with the limits that `fleet` says."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from functools import partial
from typing import Final, TypeVar

import structlog

from evener.bus.port import Bus, Record
from evener.engines.check import check_engine, compare_tokenizers
from evener.engines.open import open_engine, open_weights
from evener.engines.port import Engine, EngineError, EngineFacts, EngineRefused, LogprobRule
from evener.proto.codec import BadRecord
from evener.proto.errors import EvenerError, Hopeless, Recoverable
from evener.proto.fleet import EngineDraining, EngineJoined, EngineLeft, PolicyPublished
from evener.proto.topics import Topic
from evener.provider_gateway.pauses import Pauses
from evener.provider_gateway.slots import Member, Pooled, Slots
from evener.service.events import EventLog
from evener.service.published import Published, proven_label
from evener.templates.port import Renderer

RETRY_SECONDS: Final = 1.0
"""Between tries to reach an engine that does not answer."""
TELL_SECONDS: Final = 30.0
"""Between two warnings of that."""
PROBE_SECONDS: Final = 5.0
"""Between probes of an engine that answers."""
GIVEN_UP_SECONDS: Final = 30.0
"""When all probes of an engine have failed for so long, its open calls go elsewhere."""
FACTS_SECONDS: Final = 10.0
"""What an engine gets to say what it is now, when it answers again."""

Got = TypeVar("Got")

log = structlog.get_logger()


class Behind(Recoverable):
    """The trainer-bridge loads the version into it and has it proven, if it can; its log says why not."""


class RequiredEngineRefused(Hopeless):
    """This process has no other engine: mend that one, or name another."""


class EnginePool:
    """Keeps the engines that calls may have."""

    def __init__(self, bus: Bus, events: EventLog, renderers: Mapping[str, Renderer], slots: Slots, *, required: str | None) -> None:
        self._bus = bus
        self._events = events
        self._published = Published(bus, events)
        self._renderers = renderers
        self._slots = slots
        self._required = required
        self._required_refused: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._members: dict[str, tuple[Member, asyncio.Task[None]]] = {}
        """Engines that have joined and are not refused, and what checks and then probes each."""
        self.refused: dict[str, str] = {}
        """Engine id to why its tokens cannot be trained."""
        self.absent: dict[str, str] = {}
        """Engine id to why it cannot be asked now."""

    def ready(self) -> dict[str, bool]:
        """Return whether any engine may be used; a refused one is named with its reason, and an absent one where there is no other."""
        ready = any(one.silent_since is None for one in self._slots.engines.values())
        absent = {} if ready else {f"engine {name} absent: {why}": False for name, why in self.absent.items()}
        return {"engine": ready} | {f"engine {name} refused: {why}": False for name, why in self.refused.items()} | absent

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

    async def aclose(self) -> None:
        """Close the connections to all engines."""
        for name in list(self._members):
            await self._leave(name)

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
            case EngineDraining() if event.engine_id in self._members:
                self._members[event.engine_id][0].draining = True
            case EngineLeft():
                await self._leave(event.engine_id)
            case _:
                pass

    async def _meet(self, joined: EngineJoined) -> None:
        """Start to take an engine in. One that is known stays, unless it is another process now: it listens elsewhere, for example."""
        name = joined.engine_id
        member, _ = self._members.get(name, (None, None))
        if member is not None and _identity(member.joined) == _identity(joined):
            member.joined, member.draining = joined, False  # its limits may be others now
            if (pooled := self._slots.engines.get(name)) is not None:
                self._slots.offer(pooled)
            return
        await self._leave(name)
        member = Member(joined)
        self._members[name] = member, asyncio.create_task(self._keep(member))

    async def _keep(self, member: Member) -> None:
        """Check an engine, take it in, and probe it until it leaves. One that fails the check is refused."""
        joined = member.joined
        try:
            async with aclosing(open_engine(joined)) as engine, aclosing(Pauses(open_weights(joined))) as pauses:
                facts, rule, unfit = await self._check(member, engine)
                log.info("engine_joined", engine_id=joined.engine_id, kind=joined.kind, policy=joined.policy, version=facts.version)
                await self._serve(Pooled(member, engine, facts, rule, pauses, unfit=unfit))
        except EvenerError as refused:
            self._refuse(member, str(refused))

    async def _check(self, member: Member, engine: Engine) -> tuple[EngineFacts, LogprobRule, dict[str, str]]:
        """Return what an engine is, which logprobs of it are exact, and the policies that it does not fit, with the reasons."""
        joined = member.joined
        unfit = await self._unfit(joined, engine) if joined.policy is None else {}
        name = joined.policy or next((one for one in self._renderers if one not in unfit), next(iter(self._renderers)))
        renderer = self._renderers.get(name)
        if renderer is None:
            msg = f"engine {joined.engine_id} samples policy {name!r}, which this gateway has no template for"
            raise EngineRefused(msg)
        while True:
            before = await self._patiently(joined, lambda: self._current(member.joined, engine))
            try:
                rule = await self._patiently(joined, lambda: check_engine(engine, renderer))
            except EngineRefused:
                if (await self._patiently(joined, engine.facts)).version == before.version:
                    raise
                continue  # its weights were exchanged under the check
            return await self._patiently(joined, engine.facts), rule, unfit

    async def _unfit(self, joined: EngineJoined, engine: Engine) -> dict[str, str]:
        """Return the policies whose tokenizer a frozen engine has not, and what differs: runs of any may name it."""
        unfit: dict[str, str] = {}
        for name, renderer in self._renderers.items():
            try:
                await self._patiently(joined, partial(compare_tokenizers, engine, renderer))
            except EngineRefused as differs:
                unfit[name] = str(differs)
                log.warning("engine_unfit", engine_id=joined.engine_id, policy=name, error=str(differs))
        return unfit

    async def _current(self, joined: EngineJoined, engine: Engine) -> EngineFacts:
        """Return what the engine says of itself. Raises Behind until it has proven the newest version of its policy."""
        facts = await engine.facts()
        if joined.policy is not None:
            await self._published.refresh()
            newest = self._published.current(joined.policy)
            if newest is not None and not _serves(facts, newest, joined):
                msg = f"it has {facts.label or facts.version}, and has not proven version {newest.version} of {joined.policy}"
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

    async def _serve(self, pooled: Pooled) -> None:
        """Give an engine calls until it leaves. While it does not answer it gets none, and after a while it loses those that it has."""
        name = pooled.joined.engine_id
        self._slots.engines[name] = pooled
        self._welcome(pooled)
        loop = asyncio.get_running_loop()
        well_at = loop.time()
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(PROBE_SECONDS if pooled.silent_since is None else RETRY_SECONDS):
                        await pooled.suspected.wait()
                pooled.suspected.clear()
                if await self._is_well(pooled):
                    well_at = loop.time()
                elif pooled.open and loop.time() - well_at >= GIVEN_UP_SECONDS:
                    log.warning("engine_given_up", engine_id=name, url=pooled.joined.url, open_calls=pooled.open)
                    pooled.give_up()
        finally:
            del self._slots.engines[name]
            pooled.give_up()

    async def _is_well(self, pooled: Pooled) -> bool:
        """Probe an engine once. One that did not answer before has to say what it is now: it may be another process."""
        joined = pooled.joined
        try:
            await pooled.engine.health()
        except EngineError as silent:
            self._note_absent(joined, str(silent))
            pooled.suspect()
            pooled.suspected.clear()
            return False
        if pooled.silent_since is not None:
            await self._ask_again(pooled)
        return True

    async def _ask_again(self, pooled: Pooled) -> None:
        """Give an engine calls again if it says what it is."""
        joined = pooled.joined
        try:
            async with asyncio.timeout(FACTS_SECONDS):
                pooled.facts = await self._current(joined, pooled.engine)
        except (EvenerError, TimeoutError) as absent:
            self._note_absent(joined, str(absent) or f"it is well, and does not say what it is within {FACTS_SECONDS:.0f} s")
        else:
            if not pooled.suspected.is_set():
                self._welcome(pooled)

    def _note_absent(self, joined: EngineJoined, why: str) -> None:
        if joined.engine_id not in self.absent:
            log.warning("engine_absent", engine_id=joined.engine_id, url=joined.url, error=why)
        self.absent[joined.engine_id] = why

    def _welcome(self, pooled: Pooled) -> None:
        """Give an engine calls."""
        if self.absent.pop(pooled.joined.engine_id, None) is not None:
            log.info("engine_answers", engine_id=pooled.joined.engine_id, url=pooled.joined.url)
        pooled.silent_since = None
        self._slots.offer(pooled)

    def _refuse(self, member: Member, why: str) -> None:
        joined = member.joined
        del self._members[joined.engine_id]
        self.absent.pop(joined.engine_id, None)
        self.refused[joined.engine_id] = why
        log.error("engine_refused", engine_id=joined.engine_id, error=why)
        if joined.engine_id == self._required and not self._required_refused.done():
            self._required_refused.set_result(f"engine {joined.url} is refused: {why}")

    async def _leave(self, engine_id: str) -> None:
        self.refused.pop(engine_id, None)
        if engine_id in self._members:
            _, task = self._members.pop(engine_id)
            task.cancel()
            await asyncio.wait({task})
        self.absent.pop(engine_id, None)


def _serves(facts: EngineFacts, newest: PolicyPublished, joined: EngineJoined) -> bool:
    """Return whether an engine has a version: by the label that the bridge gives at its proof; without labels, by the number."""
    return facts.version >= newest.version if facts.label is None else facts.label == proven_label(newest, joined)


def _identity(joined: EngineJoined) -> tuple[str, str, str | None, bool]:
    return joined.url, joined.kind, joined.policy, joined.vision
