"""The series of an engine."""

from prometheus_client import CollectorRegistry

from evener.engines.port import EngineFacts, LogprobRule
from evener.engines.vllm import VllmEngine
from evener.proto.fleet import EngineJoined
from evener.provider_gateway.engine_handle import EngineHandle, Pauses, RegisteredEngine
from evener.provider_gateway.engine_series import shown_engine
from evener.service.telemetry import metrics


def test_series_of_an_engine_are_there_as_long_as_it_is_used() -> None:
    """An engine that has left would otherwise seem to answer for ever."""
    registry = CollectorRegistry()
    joined = EngineJoined(engine_id="e1", kind="vllm", url="http://127.0.0.1:1", policy="policy", max_concurrency=8, joined_at=1.0)
    facts = EngineFacts(context_length=64, reports_versions=True, version=3)
    handle = EngineHandle(
        RegisteredEngine(joined), VllmEngine(joined.url), facts, LogprobRule(any_temperature=True, filters=True), Pauses(None)
    )

    def shown() -> list[float | None]:
        names = ("evener_engine_answers", "evener_engine_calls", "evener_engine_limit", "evener_engine_version")
        return [registry.get_sample_value(name, {"engine": "e1", "policy": "policy"}) for name in names]

    with shown_engine(handle, metrics(registry)):
        assert shown() == [1, 0, 8, 3]
        handle.silent_since, handle.taken = 1.0, 2
        assert shown() == [0, 2, 8, 3]
    assert shown() == [None, None, None, None]
