"""The series of the fleet."""

from prometheus_client import CollectorRegistry

from evener.proto.fleet import EngineDraining, EngineJoined, Heartbeat
from evener.scheduler.fleet import Fleet
from evener.scheduler.fleet_series import hide_fleet, show_fleet
from evener.service.telemetry import metrics

LEASE_SECONDS = 10.0


def beat(instance_id: str, service: str, **given: object) -> Heartbeat:
    return Heartbeat(instance_id=instance_id, service=service, boot_id="b", at=0, **given)  # type: ignore[arg-type]


def test_fleet_is_shown_by_what_lives_and_what_is_served() -> None:
    """An instance that is silent for a lease has no places and serves nothing; a standby shows nothing."""
    registry = CollectorRegistry()
    fleet = Fleet(lease_seconds=LEASE_SECONDS)
    fleet.read(beat("g1", "provider_gateway", partitions=(0, 1)), now=0.0)
    fleet.read(beat("g2", "provider_gateway", partitions=(2,)), now=20.0)
    fleet.read(beat("r1", "sandbox_runner", capacity=4), now=20.0)
    fleet.read(beat("r2", "sandbox_runner", capacity=4, stopping=True), now=20.0)
    fleet.read(EngineJoined(engine_id="e1", kind="vllm", url="http://127.0.0.1:1", joined_at=0), now=20.0)
    fleet.read(EngineDraining(engine_id="e2", draining_at=0), now=20.0)
    show_fleet(metrics(registry), fleet, partitions=4, now=21.0)

    def instances(service: str, state: str) -> float | None:
        return registry.get_sample_value("evener_fleet_instances", {"service": service, "state": state})

    assert [instances("provider_gateway", state) for state in ("alive", "silent")] == [1, 1]
    assert [instances("sandbox_runner", state) for state in ("alive", "stopping", "silent")] == [1, 1, None]
    assert registry.get_sample_value("evener_fleet_slots") == 4
    assert registry.get_sample_value("evener_fleet_partitions_unserved") == 3
    assert [registry.get_sample_value("evener_fleet_engines", {"state": state}) for state in ("joined", "draining")] == [1, 1]

    hide_fleet(metrics(registry))
    assert instances("provider_gateway", "alive") is None
    assert registry.get_sample_value("evener_fleet_partitions_unserved") == 0
