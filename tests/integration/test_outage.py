"""All six services and a blob store that goes away in the middle of their work: nothing is lost, doubled or given up."""

import asyncio
import importlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
import pytest
from tests.support.audited import breaches
from tests.support.engines import smollm
from tests.support.log import read_log
from tests.support.outage import Outage
from tests.support.service_context import QUICK
from tests.support.together import together
from tests.support.waiting import eventually, until

from evener.blobs.open import open_blobs
from evener.blobs.waited import BLOB_TIMINGS
from evener.client.client import Client
from evener.client.errors import Unavailable
from evener.engines.scripted import Rule, Script, scripted_engine
from evener.proto.codec import tag_of
from evener.proto.sessions import CallClosed, HarnessExited, SessionSealed, SessionStarted
from evener.proto.spec import GraderSpec, HarnessSpec, Sampling
from evener.proto.tasks import TaskEnded, TaskOptions, TaskOutcome
from evener.proto.topics import HEADER_TYPE, Topic
from evener.proto.trajectories import GroupMerged, TrajectoryBuilt, TrajectoryScored
from evener.service.context import ServiceContext
from evener.service.events import header
from evener.service.state_folder import TOKEN_FILE
from evener.tasks.pack import pack

TASK: Final = Path(importlib.import_module("evener.tasks.pack").__file__ or "").parent / "bundled" / "ten-words"
AGENT: Final = """
import json, os, urllib.request
messages = [{"role": "user", "content": " international" * 16_000 + " Say ten words."}]
for _ in range(2):
    body = json.dumps({"model": "any", "messages": messages, "max_tokens": 20}).encode()
    headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    answer = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    messages += [answer, {"role": "user", "content": "Again."}]
open("answer.txt", "w").write(answer["content"])
"""
"""Its first call is too large for a record, and so are the rows of its session."""
SCRIPT: Final = Script(default=Rule(say="one two three four five six seven eight nine ten", per_token_ms=20))
SAMPLES: Final = 2
STAGES: Final = {
    Topic.SESSIONS: (SessionStarted, CallClosed, HarnessExited, SessionSealed),
    Topic.BUILT: (TrajectoryBuilt,),
    Topic.SCORED: (TrajectoryScored,),
}
"""The first of each kind takes the store away."""
KINDS: Final = {kind.__name__ for kinds in STAGES.values() for kind in kinds}


async def take_away(context: ServiceContext, store: Outage, seconds: float, struck: list[str]) -> None:
    """Take the store away whenever the log has the first event of a stage, for so long."""
    outages = 0

    async def watch(topic: Topic, partition: int) -> None:
        nonlocal outages
        tags = {tag_of(kind).encode(): kind.__name__ for kind in STAGES[topic]}
        async for batch in context.bus.follow(topic, partition, 0):
            for record in batch:
                kind = tags.get(header(record, HEADER_TYPE) or b"")
                if kind is None or kind in struck:
                    continue
                struck.append(kind)
                outages += 1
                store.away = True
                await asyncio.sleep(seconds)  # the outage itself
                outages -= 1
                store.away = outages > 0

    async with asyncio.TaskGroup() as tasks:
        for topic in STAGES:
            for partition in range(context.bus.partitions_of(topic)):
                tasks.create_task(watch(topic, partition))


async def submitted(client: Client) -> str:
    """Submit the task, when all services are there."""
    packed = await asyncio.to_thread(pack, TASK)
    harness = HarnessSpec(name="command", options={"argv": json.dumps(["python3", "-c", AGENT])})
    options = TaskOptions(
        run_id="run", samples=SAMPLES, harness=harness, grader=GraderSpec(name="harbor"), sampling=Sampling(max_tokens=64)
    )

    async def asked() -> str:
        with suppress(Unavailable):
            await client.put_blob(packed.data)
            return (await client.submit(options, task=packed.ref, task_id="t")).task.task_id
        return ""

    return await until(asked)


@pytest.mark.parametrize("seconds", [0.6, pytest.param(30.0, marks=pytest.mark.slow)])
async def test_outages_in_every_stage_cost_nothing(tmp_path: Path, seconds: float) -> None:
    """During calls, exits, builds, gradings and merges: every session is graded and merged once, and the log is whole."""
    timings = QUICK if seconds < 1 else BLOB_TIMINGS
    store = Outage(open_blobs(str(tmp_path / "blobs")))
    tokenizer = smollm()
    struck: list[str] = []
    async with (
        scripted_engine(SCRIPT, tokenizer, context=20_000) as engine,
        together(tmp_path, engine, timings, blobs=store) as context,
        Client(context.address, (tmp_path / TOKEN_FILE).read_text().strip()) as client,
    ):
        taking = asyncio.ensure_future(take_away(context, store, seconds, struck))
        try:
            task_id = await submitted(client)
            async with asyncio.timeout(180 + 12 * seconds):
                async for view in client.watch("run"):
                    if view.outcome is not None:
                        break
                await eventually(lambda: set(struck) == KINDS)
        finally:
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
        store.away = False
        log = await read_log(context.bus, store)
        ledger = [msgspec.json.encode(entry).decode() for entry in engine.ledger]
        found = await breaches(context.bus, store, engine=ledger)

    assert store.refused > len(struck)
    assert log.dead == []
    assert [event.outcome for event in log.ended[task_id] if isinstance(event, TaskEnded)] == [TaskOutcome.MERGED]
    ((topic, group),) = next(iter(log.groups.values()))
    assert topic is Topic.MERGED
    assert isinstance(group, GroupMerged)
    assert [member.scored.reward for member in group.members if member.scored] == [1.0] * SAMPLES
    assert [len(log.of_kind(session, CallClosed)) for session in sorted(log.sessions)] == [2] * SAMPLES
    assert [start.attempt for session in log.sessions for start in log.of_kind(session, SessionStarted)] == [1] * SAMPLES
    assert len(ledger) == 2 * SAMPLES
    assert found == []


async def test_readiness_names_a_store_that_does_not_answer(tmp_path: Path) -> None:
    """With S3 dead, everything said that it was ready."""
    store = Outage(open_blobs(str(tmp_path / "blobs")))
    tokenizer = smollm()

    async def host(http: aiohttp.ClientSession, url: str) -> dict[str, bool]:
        async with http.get(f"{url}/readyz") as answer:
            said: dict[str, Any] = await answer.json()
            return dict(said["services"]["host"])

    async with (
        scripted_engine(SCRIPT, tokenizer) as engine,
        together(tmp_path, engine, blobs=store) as context,
        aiohttp.ClientSession() as http,
    ):
        assert await host(http, context.address) == {"bus": True, "blobs": True}
        store.away = True
        await until(lambda: host(http, context.address), lambda told: told == {"bus": True, "blobs": False})
