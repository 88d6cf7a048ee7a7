"""What stands around an `evener up` that dies: an engine and harness ledgers that outlive it, tasks, and the audit at the end."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec
from proofs.chaos.work import AGENT, POLICIES, TASKS, Noted, Wanted, Work, script
from tests.support.audited import breaches
from tests.support.engines import smollm
from tests.support.log import Log, read_log
from tests.support.ports import closed_port
from tests.support.up import EVENER, Up, up
from tokenizers import Tokenizer

from evener.blobs.open import open_blobs
from evener.bus.read_only import open_reader
from evener.client.client import Client
from evener.engines.scripted import Script, ScriptedServer, scripted_engine
from evener.service.state_folder import TOKEN_FILE

PLANTED: Final = str(Path(__file__).with_name("planted.py"))
"""Program that runs `up` with a fault planted: its words are this, the fault's name, its arguments."""
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


class Storm:
    """One state folder, its tasks, and the ledgers."""

    def __init__(self, folder: Path, process: Up, engine: ScriptedServer, tokenizer: Tokenizer, *, wanted: Sequence[Wanted]) -> None:
        self.engine = engine
        self.up = process
        self.work = Work(folder, wanted, self._client)
        self._tokenizer = tokenizer
        self._state = folder / "state"

    async def survive(self, *faults: str, delivered: bool = True) -> None:
        """Start with one fault after the other, each until it has struck, then without any until all tasks have ended.

        `delivered`: with every group; a program that is faulty itself may lose some, and the audit says so.
        """
        submitting = asyncio.create_task(self.work.submit())
        for fault in faults:
            await self.up.start(fault)
            await self.up.struck(fault)
        await self.up.start()
        await self.up.ready()
        await submitting
        await self.ended(delivered=delivered)
        await self.up.stop()

    async def ended(self, *, delivered: bool = True) -> None:
        """Wait until every task has ended; `delivered`: none of them failed."""
        await self.work.ended(self.up.runs, seconds=ENDED_SECONDS, delivered=delivered)

    async def orphan(self, keyed: Noted, task_id: str) -> asyncio.subprocess.Process:
        """Start what a harness might have left behind: a process that nobody finds, with the harness's address and key."""
        environment = {"OPENAI_BASE_URL": keyed.url.removesuffix("/chat/completions"), "OPENAI_API_KEY": keyed.key}
        ledger = self.work.ledger(task_id)
        return await asyncio.create_subprocess_exec(sys.executable, str(AGENT), "--as-orphan", str(ledger), str(ledger), env=environment)

    def prompts(self) -> list[str]:
        """Return what the engine was given, as text."""
        return [self._tokenizer.decode(entry.fed_ids, skip_special_tokens=False) for entry in self.engine.ledger]

    async def log(self) -> Log:
        """Read the log."""
        async with open_reader(f"embedded:{self._state / 'bus'}") as log:
            return await read_log(log, open_blobs(str(self._state / "blobs")))

    async def audit(self) -> list[str]:
        """Return all faults, tasks that were accepted and forgotten included."""
        log = await self.log()
        lines = [msgspec.json.encode(entry).decode() for entry in self.engine.ledger]
        forgotten = [f"task {one.task_id} was forgotten" for one in self.work.wanted if one.task_id not in log.submitted]
        async with open_reader(f"embedded:{self._state / 'bus'}") as reader:
            found = await breaches(reader, open_blobs(str(self._state / "blobs")), answers=self.work.answers(), engine=lines)
        return forgotten + found

    def _client(self) -> Client:
        return Client(self.up.url, (self._state / TOKEN_FILE).read_text().strip())


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
        tokenizer = await asyncio.to_thread(smollm)
        engine = await stack.enter_async_context(scripted_engine(says or script(), tokenizer))
        flags = {**OPTIONS, "engine": engine.url, **given}
        process = await stack.enter_async_context(up(folder / "state", closed_port(), flags, program))
        yield Storm(folder, process, engine, tokenizer, wanted=wanted)
