"""Whole sessions whose stages take fixed times: two seconds of preparing, four of running, two of grading, on fixed slots.

All six services run in one process. Only the work is simulated: a backend of plain processes whose opening takes two seconds, an engine
that answers after four, and tests that sleep for two.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from tests.support.engines import smollm
from tests.support.together import together

from evener.client.client import Client
from evener.engines.scripted import Rule, Script, scripted_engine
from evener.proto.sandbox import SandboxSpec
from evener.proto.spec import GraderSpec, HarnessSpec, Sampling
from evener.proto.tasks import TaskOptions
from evener.sandboxes.local import open_local
from evener.sandboxes.port import ANY_SANDBOX, Sandbox, Sandboxes
from evener.sandboxes.registry import BACKENDS, Backend
from evener.service.state_folder import TOKEN_FILE
from evener.tasks.pack import Packed, pack

PREPARE_SECONDS: Final = 2.0
RUN_SECONDS: Final = 4.0
GRADE_SECONDS: Final = 2.0
RUNNING: Final = 4
"""The sessions that run at a time."""
PREPARING: Final = 3
GRADING: Final = 3
SLOW: Final = "simulated"
SCRIPT: Final = Script(default=Rule(say="done", delay_ms=int(RUN_SECONDS * 1000)))
TASK: Final = {
    "instruction.md": "Say that you are done.\n",
    "tests/test.sh": f"sleep {GRADE_SECONDS:g}\nmkdir -p /logs/verifier\necho 1 > /logs/verifier/reward.txt\n",
}


class SlowSandboxes:
    """Plain processes, whose sandboxes take as long to prepare as containers of a large image."""

    def __init__(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes

    def trouble(self) -> str:
        return self._sandboxes.trouble()

    @asynccontextmanager
    async def open(self, name: str, spec: SandboxSpec = ANY_SANDBOX) -> AsyncIterator[Sandbox]:
        async with self._sandboxes.open(name, spec) as sandbox:
            await asyncio.sleep(PREPARE_SECONDS)
            yield sandbox


@asynccontextmanager
async def _open_simulated(root: Path) -> AsyncIterator[Sandboxes]:
    """Open the backend. Only the runner's sandboxes take time: the evaluator's are part of grading."""
    async with open_local(root) as sandboxes:
        yield sandboxes if "grading" in root.parts else SlowSandboxes(sandboxes)


@contextmanager
def simulated() -> Iterator[None]:
    """Have the backend within this block."""
    BACKENDS[SLOW] = Backend(open=lambda root, _: _open_simulated(root), lacks=lambda _: ())
    try:
        yield
    finally:
        del BACKENDS[SLOW]


class ArmFigures(Struct, frozen=True, kw_only=True):
    """One way to run the sessions."""

    sessions: int
    wall_seconds: float
    """From the first submission to the end of the last task."""
    over_run_stage: float
    """The same over the time that running alone takes: sessions * RUN_SECONDS / RUNNING."""


async def measure_overlapping(folder: Path, sessions: int) -> ArmFigures:
    """Submit all sessions at once: stages of different sessions overlap."""
    async with _evener(folder, warm=2 * RUNNING) as work:
        return await _measured(sessions, work.run("all", range(sessions)))


async def measure_serial(folder: Path, sessions: int) -> ArmFigures:
    """Give each slot its next session when its last one is graded, and prepare nothing ahead: stages follow each other."""
    async with _evener(folder, warm=0) as work:

        async def slot(first: int) -> None:
            for number in range(first, sessions, RUNNING):
                await work.run(f"serial-{number}", [number])

        async def all_slots() -> None:
            await asyncio.gather(*map(slot, range(RUNNING)))

        return await _measured(sessions, all_slots())


class _Work:
    """Submits sessions, each as a task of its own, and waits until they are graded."""

    def __init__(self, client: Client, packed: Packed) -> None:
        self._client = client
        self._packed = packed

    async def run(self, run_id: str, numbers: Sequence[int]) -> None:
        """Run sessions to their ends. Raises AssertionError for one that does not get its reward."""
        options = TaskOptions(
            run_id=run_id,
            harness=HarnessSpec(name="script", sandbox=SLOW),
            grader=GraderSpec(name="harbor"),
            sampling=Sampling(max_tokens=8),
        )
        for number in numbers:
            await self._client.submit(options, task=self._packed.ref, task_id=f"{run_id}-{number}")
        ended = set[str]()
        async with aclosing(self._client.watch(run_id)) as views:
            async for view in views:
                if view.outcome is None:
                    continue
                if view.rewards != (1.0,):
                    msg = f"task {view.task_id} ended as {view.outcome} with {view.rewards}: {view.reason}"
                    raise AssertionError(msg)
                ended.add(view.task_id)
                if len(ended) == len(numbers):
                    return


@asynccontextmanager
async def _evener(folder: Path, warm: int) -> AsyncIterator[_Work]:
    """Run a whole Evener, through which one session has gone."""
    for name, text in TASK.items():
        place = folder / "task" / name
        await asyncio.to_thread(place.parent.mkdir, parents=True, exist_ok=True)
        await asyncio.to_thread(place.write_text, text)
    packed = await asyncio.to_thread(pack, folder / "task")
    runner = {"warm_sandboxes": warm, "preparing": PREPARING}
    state = folder / "state"
    async with (
        scripted_engine(SCRIPT, smollm()) as engine,
        together(state, engine, capacity=RUNNING, of_runner=runner, of_evaluator={"concurrency": GRADING}) as context,
        Client(context.address, (state / TOKEN_FILE).read_text().strip()) as client,
    ):
        await client.patiently(lambda: client.put_blob(packed.data))
        work = _Work(client, packed)
        await client.patiently(client.tasks)
        await work.run("first", [0])
        yield work


async def _measured(sessions: int, work: Coroutine[Any, Any, None]) -> ArmFigures:
    began = time.perf_counter()
    await work
    wall = time.perf_counter() - began
    return ArmFigures(sessions=sessions, wall_seconds=wall, over_run_stage=wall / (sessions * RUN_SECONDS / RUNNING))
