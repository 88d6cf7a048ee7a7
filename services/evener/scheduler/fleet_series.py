"""Exports what the active scheduler knows of the fleet as metrics."""

from collections import Counter

from evener.proto.fleet import EngineDraining
from evener.scheduler.fleet import Fleet
from evener.service.owners import GATEWAY
from evener.service.telemetry import Metrics

ALIVE, STOPPING, SILENT = "alive", "stopping", "silent"
JOINED, DRAINING = "joined", "draining"


def show_fleet(metrics: Metrics, fleet: Fleet, *, partitions: int, now: float) -> None:
    """Set the series of the fleet. `partitions` is the number of partitions of `sessions`; `now` is of the fleet's clock."""
    hide_fleet(metrics)
    for (service, state), count in _instances(fleet, now).items():
        metrics.fleet_instances.labels(service, state).set(count)
    metrics.fleet_slots.set(sum(beat.capacity for beat in fleet.runners(now=now)))
    served = {number for beat in fleet.living(GATEWAY, now=now) for number in beat.partitions}
    metrics.fleet_partitions_unserved.set(partitions - len(served))
    for engine in fleet.engines.values():
        state = DRAINING if isinstance(engine, EngineDraining) else JOINED
        metrics.fleet_engines.labels(state).inc()


def hide_fleet(metrics: Metrics) -> None:
    """Show nothing: another scheduler is active, or none."""
    metrics.fleet_instances.clear()
    metrics.fleet_engines.clear()
    metrics.fleet_slots.set(0)
    metrics.fleet_partitions_unserved.set(0)
    metrics.runners_quarantined.set(0)


def _instances(fleet: Fleet, now: float) -> Counter[tuple[str, str]]:
    """Return the number of instances by service and state."""
    found: Counter[tuple[str, str]] = Counter()
    for beat in fleet.heartbeats.values():
        alive = fleet.alive(beat.instance_id, now=now)
        found[beat.service, (STOPPING if beat.stopping else ALIVE) if alive else SILENT] += 1
    return found
