"""The metrics of a process."""

from prometheus_client import CollectorRegistry

from evener.service.telemetry import metrics


def test_series_are_registered_once_for_six_services() -> None:
    """A service that is started again counts on."""
    registry = CollectorRegistry()

    assert metrics(registry) is metrics(registry)
    assert metrics(registry) is not metrics(CollectorRegistry())
