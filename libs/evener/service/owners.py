"""Which gateway owns which partition of `sessions`, according to `fleet`.

Of all gateways that list a partition, the one with the highest epoch owns it. A late heartbeat of an earlier owner therefore changes
nothing, and neither does the order in which heartbeats arrive.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from typing import Final

from msgspec import Struct

from evener.proto.fleet import Heartbeat
from evener.runtime.change import Change
from evener.runtime.interrupt import Interrupt
from evener.service.fleet_feed import FleetFeed, FleetRecord

GATEWAY: Final = "provider_gateway"
FRESH_SECONDS: Final = 5.0
"""A gateway that was not heard of for longer than this counts as dead. More than two of its heartbeats, less than a group's session."""


class Moved(Exception):
    """Another gateway owns the partition now."""


class Hold(Struct, frozen=True):
    """A gateway's hold on a partition, as it lists it."""

    instance_id: str
    address: str
    epoch: int
    releasing: bool
    """Whether it hands the partition over, and takes no new calls."""


class _Gateway(Struct, frozen=True):
    beat: Heartbeat
    epochs: Mapping[int, int]
    heard_at: float


class Owners:
    """The gateways and their partitions."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.change = Change()
        """Notes every heartbeat that differs from the one before it in more than its time."""
        self.caught_up = asyncio.Event()
        """Set when everything is known that `fleet` held at the start."""
        self._now = now
        self._gateways: dict[str, _Gateway] = {}
        self._holds: dict[int, Hold] = {}
        """The hold with the highest epoch on each partition."""
        self._watched: dict[Interrupt, tuple[int, Collection[str | None]]] = {}
        """Blocks that end when their partition moves to a gateway that they do not know."""

    async def follow(self, fleet: FleetFeed) -> None:
        """Keep up with `fleet` until cancelled."""
        async with aclosing(fleet.follow()) as batches:
            async for batch in batches:
                self.read(batch)
                self.caught_up.set()

    def read(self, records: Iterable[FleetRecord]) -> None:
        """Apply heartbeats of gateways. Other records are ignored."""
        for record in records:
            event = record.event
            if isinstance(event, Heartbeat) and event.service == GATEWAY and event.address is not None:
                age = max(0.0, time.time() - record.written_at) if record.heard_at is None else 0.0
                self._take(event, self._now() - age)

    def hold(self, partition: int) -> Hold | None:
        """Return the owner's hold on a partition. None: no gateway lists it."""
        return self._holds.get(partition)

    def address(self, partition: int) -> str | None:
        """Return the base URL of the owner. None: no gateway lists the partition."""
        hold = self._holds.get(partition)
        return None if hold is None else hold.address

    def living(self) -> Mapping[str, Heartbeat]:
        """Return the last heartbeats of the gateways that were heard of lately and do not stop, by instance id."""
        since = self._now() - FRESH_SECONDS
        return {name: one.beat for name, one in self._gateways.items() if one.heard_at > since and not one.beat.stopping}

    def holder(self, partition: int, *, besides: str) -> str | None:
        """Return the instance id of another gateway that is alive and holds a partition, perhaps only to hand it over."""
        since = self._now() - FRESH_SECONDS
        for name, one in self._gateways.items():
            if name != besides and one.heard_at > since and partition in one.epochs:
                return name
        return None

    def held(self) -> Mapping[str, int]:
        """Return how many partitions each gateway holds that was heard of lately, by instance id."""
        since = self._now() - FRESH_SECONDS
        return {name: len(one.epochs) for name, one in self._gateways.items() if one.heard_at > since and one.epochs}

    def share(self, limit: int, name: str) -> int:
        """Return how many calls a gateway may give an engine of which all gateways may have `limit`."""
        return share_of(limit, self.held(), name)

    def highest(self, partition: int) -> int:
        """Return the highest epoch with which a gateway lists a partition. -1: none does."""
        hold = self._holds.get(partition)
        return -1 if hold is None else hold.epoch

    async def serving(self, partition: int) -> str:
        """Wait until a gateway owns the partition and does not hand it over; return its base URL."""
        while True:
            hold = self._holds.get(partition)
            if hold is not None and not hold.releasing:
                return hold.address
            await self.change.until(lambda known=hold: self._holds.get(partition) != known)  # type: ignore[misc]

    async def handed_over(self, partition: int) -> None:
        """Wait while a living gateway hands the partition over, which it does for its own `handover_seconds` at most."""
        while (hold := self._holds.get(partition)) is not None and hold.releasing and hold.instance_id in self.held():
            await self.pause(partition, hold, asyncio.get_running_loop().time() + FRESH_SECONDS)

    async def pause(self, partition: int, known: Hold | None, until: float) -> None:
        """Wait until a time of the loop's clock, but not longer than the partition's owner is the one that is known."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self.change.until(lambda: self._holds.get(partition) != known)

    @contextmanager
    def watched(self, partition: int, known: Collection[str | None]) -> Iterator[None]:
        """Raise Moved in this block when a gateway that is not among the known ones owns the partition."""
        interrupt = Interrupt()
        self._watched[interrupt] = partition, known
        try:
            with interrupt:
                yield
        finally:
            del self._watched[interrupt]

    def _take(self, beat: Heartbeat, heard_at: float) -> None:
        known = self._gateways.get(beat.instance_id)
        if known is not None and known.beat.boot_id == beat.boot_id and beat.at < known.beat.at:
            return
        self._gateways[beat.instance_id] = _Gateway(beat, dict(beat.epochs), heard_at)
        if known is not None and _told(known.beat) == _told(beat):
            return
        self._holds = self._highest()
        self.change.note()
        for interrupt, (partition, addresses) in self._watched.items():
            if (owner := self.address(partition)) is not None and owner not in addresses:
                interrupt.end(Moved(f"partition {partition} is owned by {owner} now"))

    def _highest(self) -> dict[int, Hold]:
        holds: dict[int, Hold] = {}
        for name, one in self._gateways.items():
            for partition, epoch in one.epochs.items():
                if one.beat.address is not None and (partition not in holds or epoch > holds[partition].epoch):
                    holds[partition] = Hold(name, one.beat.address, epoch, partition in one.beat.releasing)
        return holds


def _told(beat: Heartbeat) -> tuple[object, ...]:
    """Return what a heartbeat says apart from its time."""
    return beat.address, beat.boot_id, beat.stopping, beat.releasing, beat.epochs, beat.reaches


def share_of(limit: int, held: Mapping[str, int], name: str) -> int:
    """Return one gateway's share of a limit: by the number of partitions that it holds, at least 1.

    The shares are whole and make up the limit together, unless more gateways need their 1 than it has slots.
    """
    mine, total = held.get(name, 0), sum(held.values())
    if mine == total:  # nobody else holds any
        return limit
    if not mine:
        return 1
    slots = {one: limit * count // total for one, count in held.items()}
    by_remainder = sorted(held, key=lambda one: (-(limit * held[one] % total), one))
    return max(1, slots[name] + (name in by_remainder[: limit - sum(slots.values())]))
