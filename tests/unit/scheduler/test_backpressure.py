"""New sessions wait while the services after the gateway are too far behind."""

from prometheus_client import CollectorRegistry

from evener.proto.fleet import Heartbeat, TopicLag
from evener.scheduler.backpressure import Backpressure
from evener.service.telemetry import metrics


def beat(service: str, behind: int, instance: str = "a") -> Heartbeat:
    lag = TopicLag(topic="t", records=behind, partitions=1, worst_partition=0, worst_records=behind)
    return Heartbeat(instance_id=f"{instance}-{service}", service=service, boot_id="b", lag=(lag,), at=0)


def pressure(registry: CollectorRegistry | None = None, *, records: int = 100, sessions: int = 10) -> Backpressure:
    return Backpressure(records, sessions, metrics(registry or CollectorRegistry()))


def test_sessions_wait_above_the_limit_until_half_of_it() -> None:
    """Not around one number, or they would start and stop with every heartbeat."""
    registry = CollectorRegistry()
    held = pressure(registry)
    assert not held.look([beat("evaluator", 10)])
    assert held.reason == ""
    assert held.look([beat("evaluator", 11)])
    assert held.reason == "evaluator is 11 sessions behind, over its limit of 10"
    assert registry.get_sample_value("evener_admission_held", {"behind": "evaluator"}) == 1
    assert not held.look([beat("evaluator", 6)])
    assert held.reason == "evaluator is 6 sessions behind, over its limit of 10"
    assert held.look([beat("evaluator", 5)])
    assert held.reason == ""
    assert registry.get_sample_value("evener_admission_held", {"behind": "evaluator"}) == 0


def test_all_instances_of_a_service_count_together() -> None:
    """Each reads a part of the partitions. The reconstructors' limit is in records; others are told beside it."""
    held = pressure()
    held.look([beat("reconstructor", 60), beat("reconstructor", 41, "b"), beat("trainer_bridge", 11), beat("provider_gateway", 10_000)])
    assert held.reason == (
        "reconstructor is 101 records behind, over its limit of 100; trainer_bridge is 11 sessions behind, over its limit of 10"
    )


def test_service_without_a_living_instance_tells_nothing() -> None:
    """It does not catch up by dying, and one that never was there holds nothing."""
    held = pressure()
    held.look([])
    assert held.reason == ""
    held.look([beat("evaluator", 50)])
    assert not held.look([])
    assert held.reason == "evaluator is 50 sessions behind, over its limit of 10"


def test_limit_of_zero_is_none() -> None:
    """An operator may want all of it sampled first."""
    held = pressure(sessions=0)
    assert not held.look([beat("evaluator", 10**9)])
