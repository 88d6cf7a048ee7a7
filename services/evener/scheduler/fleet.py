"""The instances and engines in `fleet`, and the leases of attempts.

All times are of one monotonic clock of this process. Clocks of different machines are not compared.
"""

from collections.abc import Iterable
from typing import Final

from evener.proto.fleet import EngineDraining, EngineJoined, EngineLeft, Heartbeat, Running

RUNNER: Final = "sandbox_runner"
"""The service whose instances run sessions."""


class Fleet:
    """The last heartbeat of each instance, and the state of each engine."""

    def __init__(self, *, lease_seconds: float) -> None:
        """`lease_seconds`: how long an instance that was heard is alive."""
        self._lease_seconds = lease_seconds
        self.heartbeats: dict[str, Heartbeat] = {}
        self.heard_at: dict[str, float] = {}
        """When each instance was last heard, by instance id. Instances whose old heartbeat was read at the start are absent."""
        self.engines: dict[str, EngineJoined | EngineDraining] = {}

    def read(self, event: object, *, now: float | None) -> None:
        """Apply an event of `fleet`. `now` is when it was heard. None: it is old."""
        match event:
            case Heartbeat():
                self.heartbeats[event.instance_id] = event
                if now is not None:
                    self.heard_at[event.instance_id] = now
            case EngineJoined() | EngineDraining():
                self.engines[event.engine_id] = event
            case EngineLeft():
                self.engines.pop(event.engine_id, None)
            case _:
                pass

    def forget(self, instance_id: str) -> None:
        """Drop an instance that was deleted from `fleet`."""
        self.heartbeats.pop(instance_id, None)
        self.heard_at.pop(instance_id, None)

    def silent_since(self, at: float, *, began_at: float) -> list[str]:
        """Return the instances that were not heard after a time. One of which an old heartbeat alone is known was heard at `began_at`."""
        return [instance_id for instance_id in self.heartbeats if self.heard_at.get(instance_id, began_at) < at]

    def alive(self, instance_id: str, *, now: float) -> bool:
        """Return whether the instance was heard within a lease."""
        return now - self.heard_at.get(instance_id, float("-inf")) < self._lease_seconds

    def all_living(self, *, now: float) -> list[Heartbeat]:
        """Return the last heartbeats of all instances that are alive."""
        return [beat for beat in self.heartbeats.values() if self.alive(beat.instance_id, now=now)]

    def is_active(self, beat: Heartbeat) -> bool:
        """Return whether an instance is the active one of the schedulers of its name, as far as their heartbeats tell."""
        epochs = (other.active_epoch for other in self.heartbeats.values() if other.scheduler == beat.scheduler)
        return bool(beat.active_epoch) and beat.active_epoch == max(epochs)

    def living(self, service: str, *, now: float) -> list[Heartbeat]:
        """Return the last heartbeats of a service's instances that are alive."""
        return [beat for beat in self.all_living(now=now) if beat.service == service]

    def runners(self, *, now: float) -> list[Heartbeat]:
        """Return the runners that accept sessions."""
        return [beat for beat in self.living(RUNNER, now=now) if not beat.stopping]


class Leases:
    """When each attempt was last seen alive."""

    def __init__(self, *, seconds: float, began_at: float) -> None:
        """`began_at`: when `fleet` had been read to its end. Nothing expires within one lease after that."""
        self._seconds = seconds
        self._began_at = began_at
        self._signs: dict[Running, float] = {}

    def sign(self, attempts: Iterable[Running], *, now: float) -> None:
        """Renew the leases of these attempts, which were just dispatched or are listed by their runner."""
        self._signs.update(dict.fromkeys(attempts, now))

    def slept(self, seconds: float) -> None:
        """Exclude a time in which this process or the log was asleep from all leases."""
        self._began_at += seconds
        self._signs = {attempt: at + seconds for attempt, at in self._signs.items()}

    def expired(self, held: Iterable[Running], *, now: float) -> list[Running]:
        """Return the held attempts that are lost, and forget the leases of attempts that are no longer held."""
        held = set(held)
        self._signs = {attempt: at for attempt, at in self._signs.items() if attempt in held}
        return [attempt for attempt in held if now - max(self._signs.get(attempt, self._began_at), self._began_at) > self._seconds]
