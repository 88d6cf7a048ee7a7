"""The partitions that this gateway owns: it takes them over, serves them, and hands them over to their next owner."""

import asyncio
from collections.abc import Callable, Collection, Iterable
from contextlib import AsyncExitStack, suppress
from typing import Any, Final

import structlog

from evener.bus.port import Bus, Fenced
from evener.proto.errors import Recoverable
from evener.proto.topics import Topic
from evener.provider_gateway.partition import GROUP, Partition
from evener.provider_gateway.writer import PartitionWriter
from evener.runtime.change import first_of
from evener.runtime.tasks import Tasks
from evener.service.events import EventLog
from evener.service.owners import Owners
from evener.service.partitions import Owned
from evener.service.telemetry import Metrics

TAKEN_AT_A_TIME: Final = 8
"""How many partitions are taken over at the same time: the first of many are served sooner, and all of them no later."""
GATEWAYS_POLL_SECONDS: Final = 1.0
"""The interval at which the gateway checks whether others are alive: their silence causes no event."""

log = structlog.get_logger()


class OwnedPartitions:
    """The owned partitions by number."""

    def __init__(
        self,
        bus: Bus,
        events: EventLog,
        metrics: Metrics,
        owners: Owners,
        *,
        instance_id: str,
        handover_seconds: float,
        outreached_seconds: float,
        reached: Callable[[], frozenset[str]],
        changed: Callable[[], None],
    ) -> None:
        """`reached` returns what this gateway has engines for. `changed` is called when the next heartbeat says something new."""
        self._bus = bus
        self._events = events
        self._metrics = metrics
        self._owners = owners
        self._instance_id = instance_id
        self._handover_seconds = handover_seconds
        self._outreached_seconds = outreached_seconds
        self._reached = reached
        self._changed = changed
        self.held: dict[int, Partition] = {}
        """The partitions that this gateway has taken over, by number."""
        self._owned: Owned | None = None
        """The partitions that the group assigns. None: the gateway does not run yet."""
        self._turn = asyncio.Semaphore(TAKEN_AT_A_TIME)
        self._stopping = False
        self._is_member = False
        self._outreached_since: float | None = None
        """Since when another gateway reaches more engines, by the loop's clock. None: none does."""

    @property
    def ready(self) -> bool:
        """Whether the group has assigned partitions, and all of them are served."""
        return self._owned is not None and self._owned.joined and self._owned.assigned <= self.held.keys()

    def listing(self) -> dict[str, Any]:
        """Return the fields of the heartbeat that list partitions."""
        releasing = tuple(sorted(number for number, held in self.held.items() if held.releasing))
        return {
            "partitions": tuple(sorted(self.held.keys() - set(releasing))),
            "releasing": releasing,
            "epochs": tuple((number, held.epoch) for number, held in sorted(self.held.items())),
        }

    def address_of(self, number: int) -> str | None:
        """Return the base URL of another gateway that owns a partition. None: there is none."""
        hold = self._owners.hold(number)
        return None if hold is None or hold.instance_id == self._instance_id else hold.address

    async def run(self, name: str) -> None:
        """Take part in the group under a name, and serve what it assigns, until cancelled."""
        await self._owners.caught_up.wait()
        async with Tasks() as tasks:
            self._owned = owned = Owned(self.serve, tasks, change=self._owners.change, hands_over=True)
            tasks.create_task(self._look())
            while True:
                await owned.change.until(self._takes_part)
                self._is_member, member = True, tasks.create_task(self._be_member(owned, name))
                await owned.change.until(lambda: not self._takes_part())
                self._is_member = False
                owned.assign(frozenset(), None)  # everything is released from here on, and the others are told by the group
                member.cancel()
                await asyncio.wait({member})

    async def drain(self) -> None:
        """Begin no more calls. Hand everything over to the other gateways; where there are none, finish the calls in flight."""
        self._stopping = True
        for partition in self.held.values():
            partition.releasing = True
        self._tell()
        for partition in list(self.held.values()):
            await partition.until_idle()
        # with nobody to hand over to, tails and ends are followed until the process closes
        await self._owners.change.until(lambda: not self.held or self._takes_part())

    async def serve(self, number: int) -> None:
        """Take a partition over when it is free, and serve it until it is handed over. Raises Fenced."""
        if not await self._released(number):
            return
        async with AsyncExitStack() as stack:
            stack.callback(self._drop, number)  # after all else is closed: its next owner waits for that
            async with self._turn:
                producer = await self._bus.producer(f"gateway-{number}")  # which fences the earlier owner
                stack.push_async_callback(producer.aclose)
                partition = Partition(self._bus, self._events, number, PartitionWriter(producer, self._events, self._metrics))
                stack.push_async_callback(partition.aclose)
                await partition.take_over()
            partition.epoch, partition.releasing = max(producer.epoch, self._owners.highest(number) + 1), self._stopping
            self.held[number] = partition
            self._tell()
            try:
                await self._serve(number, partition)
            except Fenced:
                self._drop(number)  # at once: it has another owner, beside whom it may not be listed
                raise

    async def _serve(self, number: int, partition: Partition) -> None:
        async with Tasks() as tasks:
            serving = [tasks.create_task(partition.serve()), tasks.create_task(self._listed_elsewhere(number, partition))]
            await self._handed_over(number, partition)
            for task in serving:
                task.cancel()

    async def _handed_over(self, number: int, partition: Partition) -> None:
        """Return when the partition is assigned elsewhere and its calls have ended, or have taken too long. Raises Fenced."""
        while True:
            await self._owners.change.until(lambda: not self._is_assigned(number))
            partition.releasing = True
            self._tell()
            partition.give_way()
            log.info("partition_handed_over", partition=number, calls=partition.open_calls)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._handover_seconds):
                    await first_of(partition.until_idle(), self._owners.change.until(lambda: self._is_assigned(number)))
            if not self._is_assigned(number):
                return
            with suppress(Recoverable):  # the log is away: the next commit will tell
                await partition.prove()  # it was another's meanwhile, who may have taken it over unnoticed
            partition.releasing = self._stopping
            self._tell()

    async def _listed_elsewhere(self, number: int, partition: Partition) -> None:
        """Wait until a later owner lists the partition. Raises Fenced: this gateway may not have noticed, because it wrote nothing."""

        def is_listed() -> bool:
            hold = self._owners.hold(number)
            return hold is not None and hold.instance_id != self._instance_id and hold.epoch > partition.epoch

        await self._owners.change.until(is_listed)
        msg = f"partition {number} of sessions was taken over"
        raise Fenced(msg)

    async def _released(self, number: int) -> bool:
        """Wait until no other living gateway holds a partition, but not too long. False: it is assigned elsewhere by now."""

        def is_free() -> bool:
            return not self._is_assigned(number) or self._owners.holder(number, besides=self._instance_id) is None

        if not is_free():
            log.info("partition_awaited", partition=number, holder=self._owners.holder(number, besides=self._instance_id))
            with suppress(TimeoutError):
                async with asyncio.timeout(self._handover_seconds):
                    await self._owners.change.until(is_free)
        return self._is_assigned(number)

    async def _be_member(self, owned: Owned, name: str) -> None:
        async with self._bus.join(GROUP, Topic.SESSIONS, name) as membership:
            while True:
                owned.assign(await membership.changed(), membership)
                self._tell()

    async def _look(self) -> None:
        """Let everybody who waits look again, every second; and tell the others at once if other engines can be reached."""
        told = self._reached()
        while True:
            await asyncio.sleep(GATEWAYS_POLL_SECONDS)
            if (reached := self._reached()) != told:
                told = reached
                self._changed()
            self._owners.change.note()

    def _takes_part(self) -> bool:
        """Return whether this gateway is to be a member of the group.

        It is not if it stops and there are others, or if another reaches more engines: a member leaves if that lasts, and does not join.
        """
        others = [beat.reaches for name, beat in self._owners.living().items() if name != self._instance_id]
        if not others:
            return True
        if not is_outreached(self._reached(), others):
            self._outreached_since = None
            return not self._stopping
        now = asyncio.get_running_loop().time()
        self._outreached_since = now if self._outreached_since is None else self._outreached_since
        return not self._stopping and self._is_member and now - self._outreached_since < self._outreached_seconds

    def _is_assigned(self, number: int) -> bool:
        return self._owned is not None and number in self._owned.assigned

    def _drop(self, number: int) -> None:
        if self.held.pop(number, None) is not None:
            self._tell()

    def _tell(self) -> None:
        self._metrics.partitions_owned.set(len(self.held))
        self._changed()


def is_outreached(reached: frozenset[str], by_others: Iterable[Collection[str]]) -> bool:
    """Return whether somebody reaches a strict superset. Of all that compare themselves so, the best never are: somebody always stays."""
    return any(reached < frozenset(one) for one in by_others)
