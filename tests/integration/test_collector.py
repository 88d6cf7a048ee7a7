"""Traces of six processes through a real OpenTelemetry collector."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from scripts.kafka import free_ports
from scripts.otelcol import OtelcolMissing, otelcol
from tests.integration.test_six_processes import POLICIES, SCRIPT, ended, submitted
from tests.support.collector import open_collector
from tests.support.engines import smollm
from tests.support.processes import SERVICES, deployment
from tests.support.waiting import until

from evener.client.views import EngineRequest
from evener.engines.scripted import scripted_engine
from evener.tasks.directory import bundled

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

POLL_SECONDS = 0.2
CONFIG = """\
receivers: {{otlp: {{protocols: {{http: {{endpoint: "127.0.0.1:{port}"}}}}}}}}
processors: {{batch: {{timeout: 100ms}}}}
exporters: {{otlphttp: {{endpoint: "{backend}", compression: none}}}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines: {{traces: {{receivers: [otlp], processors: [batch], exporters: [otlphttp]}}}}
"""


@pytest.fixture(scope="session")
def program() -> str:
    try:
        return otelcol()
    except OtelcolMissing as missing:
        pytest.skip(f"NOT TESTED THROUGH A REAL COLLECTOR: {missing}")


@asynccontextmanager
async def collecting(program: str, backend: str, folder: Path) -> AsyncIterator[str]:
    """Run a collector that sends what it gets to a backend; yield its endpoint. It sends the rest when it ends."""
    (port,) = free_ports(1)
    config = folder / "collector.yaml"
    config.write_text(CONFIG.format(port=port, backend=backend))
    with (folder / "collector.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(program, "--config", f"file:{config}", stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        await until(lambda: _answers(url), lambda answers: answers or process.returncode is not None)
        assert process.returncode is None, (folder / "collector.log").read_text()
        yield url
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _answers(url: str) -> bool:
    async with aiohttp.ClientSession() as http:
        try:
            async with http.get(url):
                return True
        except aiohttp.ClientConnectionError:
            return False


async def test_one_trace_of_all_instances_arrives_behind_a_collector(
    kafka_servers: str, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each span says of which instance it is, and all are in the trace of the one task."""
    bus = f"kafka://{kafka_servers}?prefix=otel{secrets.token_hex(4)}."
    async with open_collector() as backend:
        async with (
            scripted_engine(SCRIPT, smollm()) as engine,
            collecting(program, backend.url, tmp_path) as endpoint,
            deployment(tmp_path, bus, partitions=2, policies=POLICIES) as six,
        ):
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
            await six.start()
            await six.ready("scheduler")
            async with six.client() as client:
                await client.join_engine(EngineRequest(engine_id="e1", kind="scripted", url=engine.url, policy="policy"))
                await six.ready()
                await submitted(client, "only", bundled() / "ten-words")
                await ended(client, "only", 1)
            assert await six.stop() == dict.fromkeys(SERVICES, 0), six.last_words()
        spans = backend.spans

    assert {span.service for span in spans} == {f"evener-{name}" for name in SERVICES}
    assert len({span.resource["service.instance.id"] for span in spans}) == len(SERVICES)
    assert len({span.trace_id for span in spans}) == 1
    assert {"submit", "attempt", "call", "build", "grade", "merge"} <= {span.name for span in spans}
