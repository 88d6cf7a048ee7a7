"""Processes of this example, and tasks for them: `evener up`, vLLM, the trainer. A process ends with the block that started it."""

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

from evener.client.client import Client
from evener.client.views import TaskDetail
from evener.proto.errors import EvenerError
from evener.proto.spec import Budgets, HarnessSpec, Purpose, Sampling
from evener.proto.tasks import TaskOptions
from evener.tasks.directory import load
from evener.tasks.pack import pack

START_SECONDS: Final = 180.0
STOP_SECONDS: Final = 40.0
SAMPLING: Final = Sampling(max_tokens=40)
CALLS: Final = 5
"""The number of calls that a session may make for each instruction it is given."""
AGENT_SECONDS: Final = 60.0
OPTIONS: Final = {"pi": {"context_tokens": "8192"}}


class NotDone(EvenerError):
    """Look into the logs in the folder of this run, then start it again."""


@asynccontextmanager
async def own_process(
    *command: str, log: Path | None = None, environ: Mapping[str, str] | None = None
) -> AsyncIterator[Callable[[], Awaitable[str]]]:
    """Run a program inside this block; yield what reads its next line, or raises NotDone. It dies with this process, too."""
    launcher = (sys.executable, "-m", "evener.sandboxes.launch", str(os.getpid()))
    with (log or Path(os.devnull)).open("ab") as complaints:
        process = await asyncio.create_subprocess_exec(
            *launcher,
            *command,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=complaints,
            start_new_session=True,
            env={**os.environ, **(environ or {})},
        )
    try:
        yield lambda: _line(process, f"{Path(command[0]).name} {' '.join(command[1:4])} ... (log: {log})")
    finally:
        await stop(process)


async def stop(process: Process) -> None:
    """End a process, by force if it does not end by itself."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), STOP_SECONDS)
    if process.returncode is None:
        process.kill()
        await process.wait()


async def _line(process: Process, what: str) -> str:
    """Return its next line. Raises NotDone where it ended."""
    assert process.stdout is not None  # noqa: S101 - it is piped
    line = await process.stdout.readline()
    if not line:
        msg = f"{what} ended with status {await process.wait()}"
        raise NotDone(msg)
    return line.decode().strip()


@asynccontextmanager
async def evener_up(state: Path, *options: str) -> AsyncIterator[Client]:
    """Run `evener up` on a state folder inside this block; yield its client once it is ready. Its log is STATE.log."""
    log = state.with_suffix(".log")
    (state / "evener.json").unlink(missing_ok=True)
    command = (sys.executable, "-m", "evener.cli", "up", "--state", str(state), "--port", "0", "--trust-local", *options)
    state.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 (a folder is made in no time)
    async with own_process(*command, log=log):
        url = await _ready(state, log)
        async with Client(url, (state / "operator-token").read_text().strip()) as client:
            yield client


async def _ready(state: Path, log: Path) -> str:
    async with aiohttp.ClientSession() as http:
        began = time.monotonic()
        while time.monotonic() - began < START_SECONDS:
            with suppress(OSError, ValueError, aiohttp.ClientError):
                url = str(msgspec.json.decode((state / "evener.json").read_bytes())["url"])
                async with http.get(f"{url}/readyz") as answer:
                    if answer.ok:
                        return url
            await asyncio.sleep(0.1)
    msg = f"evener up was not ready in {START_SECONDS:.0f} s (log: {log})"
    raise NotDone(msg)


async def submit_task(
    client: Client,
    folder: Path,
    task_id: str,
    *,
    run_id: str,
    harness: str,
    samples: int,
    purpose: Purpose,
    policy: str = "policy",
    sampling: Sampling = SAMPLING,
    again: int = 0,
) -> TaskDetail:
    """Submit a task directory under a given id, so that repeating the submission changes nothing.

    `again`: the number of times that the script harness repeats the prompt in the same session.
    """
    task, packed = load(folder), pack(folder)
    turns = {"turns": "\n".join([(folder / "instruction.md").read_text().strip()] * again)} if again else {}
    options = TaskOptions(
        run_id=run_id,
        samples=samples,
        purpose=purpose,
        policy=policy,
        harness=HarnessSpec(name=harness, options=OPTIONS.get(harness, {}) | turns),
        sampling=sampling,
        budgets=Budgets(calls=CALLS * (1 + again), agent_seconds=AGENT_SECONDS),
        grader=task.grader,
    )
    await client.put_blob(packed.data)
    return await client.submit(options, task=packed.ref, task_id=task_id)
