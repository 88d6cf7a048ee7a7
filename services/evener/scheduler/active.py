"""Which instance is the active scheduler of a name, according to `fleet`: the address that a standby tells its clients."""

from collections.abc import Iterable

from evener.bus.port import Bus, Record
from evener.proto.fleet import Heartbeat
from evener.proto.topics import Topic
from evener.service.events import plain


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

    async def follow(self, bus: Bus) -> None:
        """Keep up with `fleet` until cancelled."""
        start = await bus.end(Topic.FLEET, 0)
        self.read(sorted((await bus.last_values(Topic.FLEET, 0)).values(), key=lambda record: record.offset))
        async for batch in bus.follow(Topic.FLEET, 0, start):
            self.read(batch)

    def read(self, records: Iterable[Record]) -> None:
        """Apply records of `fleet`. Those of other services, and of schedulers of other names, are ignored."""
        for record in records:
            if isinstance(event := plain(record), Heartbeat) and event.scheduler == self._name:
                self._take(event)

    def _take(self, beat: Heartbeat) -> None:
        if beat.active_epoch and beat.active_epoch >= self._epoch and not beat.stopping:
            self._epoch, self._beat = beat.active_epoch, beat
        elif self._beat is not None and self._beat.instance_id == beat.instance_id:
            self._beat = None
