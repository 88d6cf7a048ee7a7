"""Which instance is the active scheduler of a name, according to `fleet`: the address that a standby tells its clients."""

from collections.abc import Iterable
from contextlib import aclosing

from evener.proto.codec import AnyEvent
from evener.proto.fleet import Heartbeat
from evener.service.fleet_feed import FleetFeed


class ActiveScheduler:
    """The instance with the highest epoch of those that said that they are the active scheduler of a name, until it says otherwise."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._epoch = 0
        """The highest epoch. A late heartbeat of an earlier one changes nothing."""
        self._beat: Heartbeat | None = None

    @property
    def address(self) -> str | None:
        """The base URL of the active scheduler. None: none is known."""
        return None if self._beat is None else self._beat.address

    async def follow(self, fleet: FleetFeed) -> None:
        """Keep up with `fleet` until cancelled."""
        async with aclosing(fleet.follow()) as batches:
            async for batch in batches:
                self.read(record.event for record in batch)

    def read(self, events: Iterable[AnyEvent | None]) -> None:
        """Apply events of `fleet`. Those of other services, and of schedulers of other names, are ignored."""
        for event in events:
            if isinstance(event, Heartbeat) and event.scheduler == self._name:
                self._take(event)

    def _take(self, beat: Heartbeat) -> None:
        if beat.active_epoch and beat.active_epoch >= self._epoch and not beat.stopping:
            self._epoch, self._beat = beat.active_epoch, beat
        elif self._beat is not None and self._beat.instance_id == beat.instance_id:
            self._beat = None
