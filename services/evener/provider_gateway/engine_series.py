"""The series of each engine that a gateway uses."""

from collections.abc import Iterator
from contextlib import contextmanager

from evener.provider_gateway.engine_handle import EngineHandle
from evener.service.telemetry import Metrics


@contextmanager
def shown_engine(handle: EngineHandle, metrics: Metrics) -> Iterator[None]:
    """Register an engine's metrics during this block. Each scrape reads the engine's state at that time."""
    labels = handle.joined.engine_id, handle.joined.policy or ""
    values = {
        metrics.engine_answers: lambda: float(handle.silent_since is None),
        metrics.engine_calls: lambda: float(handle.taken),
        metrics.engine_limit: lambda: float(handle.limit),
        metrics.engine_version: lambda: float(handle.facts.version),
    }
    for gauge, value in values.items():
        gauge.labels(*labels).set_function(value)
    try:
        yield
    finally:
        for gauge in values:
            gauge.remove(*labels)
