"""The engines of each policy, as `fleet` tells of them, the control of their weights, and the policies that gateways serve."""

import asyncio
import time
from typing import Final

import structlog

from evener.bus.port import Bus, Record
from evener.engines.open import open_weights
from evener.engines.port import WeightControl
from evener.proto.codec import BadRecord
from evener.proto.fleet import EngineJoined, EngineLeft, Heartbeat
from evener.proto.topics import Topic
from evener.service.events import EventLog

log = structlog.get_logger()


class Joined:
    """An engine that samples a policy."""

    def __init__(self, joined: EngineJoined, control: WeightControl | None) -> None:
        self.joined: Final = joined
        self.control: Final = control
        """None: it keeps the weights that it was started with."""
        self.told = ""
        """The last trouble that was logged of it, so that it is logged once."""

    @property
    def engine_id(self) -> str:
        return self.joined.engine_id


class Engines:
    """Engines that sample policies; frozen ones are not listed."""

    def __init__(self, bus: Bus, events: EventLog, *, load_seconds: float) -> None:
        """`load_seconds`: what an engine may take to load weights."""
        self._bus = bus
        self._events = events
        self._load_seconds = load_seconds
        self._engines: dict[str, Joined] = {}
        self._served: dict[str, tuple[str, ...]] = {}
        """The policies that gateways say they serve, by gateway."""
        self._left: list[WeightControl] = []
        self._next = 0
        self.changed: Final = asyncio.Event()
        """Set where an engine joined."""

    def of(self, policy: str) -> list[Joined]:
        """Return the engines of a policy."""
        return [engine for _, engine in sorted(self._engines.items()) if engine.joined.policy == policy]

    def policies(self) -> set[str]:
        """Return the policies that any engine samples."""
        return {engine.joined.policy for engine in self._engines.values() if engine.joined.policy is not None}

    def known(self) -> set[str]:
        """Return the policies that any engine samples, or any gateway serves."""
        return self.policies().union(*self._served.values())

    async def start(self) -> None:
        """Read what is known of each engine."""
        self._next = await self._bus.end(Topic.FLEET, 0)
        for record in (await self._bus.last_values(Topic.FLEET, 0)).values():
            await self._heed(record)

    async def refresh(self) -> None:
        """Read to the end as it is now."""
        async for record in self._bus.read(Topic.FLEET, 0, self._next):
            await self._take(record)

    async def follow(self) -> None:
        """Read on for ever."""
        async for batch in self._bus.follow(Topic.FLEET, 0, self._next):
            for record in batch:
                await self._take(record)

    async def put_out(self, engine: Joined) -> None:
        """Let an engine leave whose weights nobody knows."""
        left = EngineLeft(engine_id=engine.engine_id, left_at=time.time())
        await self._events.send(Topic.FLEET, engine.engine_id, left)
        await self.refresh()

    async def clean(self) -> None:
        """Close the connections to engines that left. Not while an update may still use them."""
        while self._left:
            await self._left.pop().aclose()

    async def aclose(self) -> None:
        """Close the connections to all engines."""
        for engine_id in list(self._engines):
            self._forget(engine_id)
        await self.clean()

    async def _take(self, record: Record) -> None:
        if record.offset >= self._next:  # `refresh` and `follow` meet the same ones
            self._next = record.offset + 1
            await self._heed(record)

    async def _heed(self, record: Record) -> None:
        """Take a record in."""
        if record.value is None:
            return
        try:
            event = await self._events.light(record)
        except BadRecord as bad:
            log.error("bad_fleet_record", offset=record.offset, error=str(bad))
            return
        match event:
            case EngineJoined():
                self._forget(event.engine_id)
                self._engines[event.engine_id] = Joined(event, open_weights(event, load_seconds=self._load_seconds))
                self.changed.set()
            case EngineLeft():
                self._forget(event.engine_id)
            case Heartbeat(service="provider_gateway"):
                self._served[event.instance_id] = event.policies
            case _:
                pass

    def _forget(self, engine_id: str) -> None:
        engine = self._engines.pop(engine_id, None)
        if engine is not None and engine.control is not None:
            self._left.append(engine.control)
