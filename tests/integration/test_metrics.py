"""The metrics of all six services while a task runs, and after it."""

from contextlib import suppress
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry
from tests.support.engines import smollm
from tests.support.together import submit, together
from tests.support.waiting import eventually

from evener.cli.up import SERVICES
from evener.client.client import Client
from evener.engines.scripted import Rule, Script, scripted_engine
from evener.proto.spec import GraderSpec, HarnessSpec, Sampling
from evener.proto.tasks import TaskOptions
from evener.service.state_folder import TOKEN_FILE

SCRIPT: Final = Script(default=Rule(say="one two three four five six seven eight nine ten", wait="each"))
OPTIONS: Final = TaskOptions(
    run_id="run", samples=3, harness=HarnessSpec(name="script"), grader=GraderSpec(name="harbor"), sampling=Sampling(max_tokens=64)
)
WHILE_IT_RUNS: Final = {
    "evener_sessions_waiting": 1,
    "evener_runs_waiting": 1,
    "evener_sessions_running": 2,
    "evener_harnesses_running": 2,
    "evener_calls_open": 2,
    "evener_calls_waiting": 1,
    'evener_engine_calls{engine="e1",policy="policy"}': 1,
}
AFTER_IT: Final = {
    **dict.fromkeys(WHILE_IT_RUNS, 0),
    'evener_tasks_ended_total{outcome="merged"}': 1,
    "evener_queue_seconds_count": 3,
    'evener_harness_exits_total{cause="exited"}': 3,
    "evener_prepare_seconds_count": 3,
    'evener_relay_requests_total{status="200"}': 3,
    'evener_call_seconds_count{dialect="openai_chat"}': 3,
    "evener_engine_seconds_count": 3,
    'evener_calls_ended_total{result="closed"}': 3,
    'evener_placements_total{placement="first"}': 3,
    'evener_tokens_sampled_total{policy="policy"}': 33,
    "evener_partitions_owned": 4,
    'evener_trajectories_total{termination_reason="finished"}': 3,
    'evener_rows_total{fidelity="fed"}': 3,
    'evener_gradings_total{grader="harbor",result="graded"}': 3,
    'evener_grading_seconds_count{grader="harbor"}': 3,
    'evener_groups_total{purpose="train",result="merged"}': 1,
    "evener_tokens_delivered_total": 33,
    **{f'evener_fleet_instances{{service="{service}",state="alive"}}': 1 for service in SERVICES},
    "evener_fleet_slots": 2,
    "evener_fleet_partitions_unserved": 0,
    'evener_fleet_engines{state="joined"}': 1,
    'evener_engine_answers{engine="e1",policy="policy"}': 1,
    'evener_engine_limit{engine="e1",policy="policy"}': 1,
    'evener_engine_version{engine="e1",policy="policy"}': 0,
    "evener_blob_store_usable": 1,
}


def values(registry: CollectorRegistry) -> dict[str, float]:
    """Return the value of every sample, by its name and labels as /metrics has them."""
    samples = [sample for family in registry.collect() for sample in family.samples]
    labels = [",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items())) for sample in samples]
    return {f"{sample.name}{{{told}}}" if told else sample.name: sample.value for sample, told in zip(samples, labels, strict=True)}


async def until(registry: CollectorRegistry, expected: dict[str, int]) -> None:
    """Wait until samples have these values."""
    found: dict[str, float | None] = {}

    def as_expected() -> bool:
        told = values(registry)
        found.update({name: told.get(name) for name in expected})
        return found == expected

    with suppress(TimeoutError):
        await eventually(as_expected)
    assert found == expected


async def test_metrics_tell_what_happens_and_what_happened(tmp_path: Path) -> None:
    """Two places for sessions and one for calls: of three sessions one waits for a runner, and of two calls one for the engine."""
    async with (
        scripted_engine(SCRIPT, smollm()) as engine,
        together(tmp_path, engine, capacity=2, engine_calls=1) as context,
        Client(context.address, (tmp_path / TOKEN_FILE).read_text().strip()) as client,
    ):
        await submit(client, "ten-words", OPTIONS)
        await until(context.registry, WHILE_IT_RUNS)
        engine.go(times=None)
        await until(context.registry, AFTER_IT)
        found = values(context.registry)
        assert found["evener_commit_seconds_count"] > 3
        assert min(found[f'evener_blob_seconds_count{{request="{request}"}}'] for request in ("put", "get", "has")) > 0
