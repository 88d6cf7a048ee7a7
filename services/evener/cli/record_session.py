"""Records a session whose harness runs here, or anywhere that reaches the relay."""

import asyncio
import math
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import structs

from evener.cli.connection import connect
from evener.cli.errors import Usage
from evener.cli.interrupts import on_signals
from evener.cli.output import tell
from evener.cli.record_summary import line, words
from evener.client.client import Client
from evener.client.errors import ClientError, TokenRefused
from evener.client.views import TaskView
from evener.dialects.registry import UNSET
from evener.harnesses.quirks_file import read_quirks
from evener.harnesses.registry import harness as harness_named
from evener.proto.ids import session_of
from evener.proto.spec import Quirks, TaskRef
from evener.proto.tasks import TaskOptions
from evener.runtime.interrupt import ended_by
from evener.service.exits import complain
from evener.tasks.directory import load
from evener.tasks.pack import pack

BEAT_SECONDS: Final = 5.0
GRADING_SECONDS: Final = 120.0
"""How long the command waits for its session to be graded and kept."""


class NotRunnable(Usage):
    """Give a program that can be started, after `--`."""


async def record_session(
    command: Sequence[str], options: TaskOptions, *, task: Path | None, reward: float | None, state: Path | None
) -> int:
    """Record one session, whose task and run have the same id; return the program's exit code."""
    if task is not None and reward is not None:
        msg = "--reward and --task contradict each other: a task has its own grader"
        raise Usage(msg)
    if reward is not None and not math.isfinite(reward):
        msg = f"--reward {reward} is not a finite number"
        raise Usage(msg)
    if command:
        _check_program(command[0])
    async with connect(state, sampling=True) as client:
        ref = await _put(client, task) if task else None
        if task is not None:
            options = structs.replace(options, grader=load(task).grader)
        task_id = options.run_id
        await client.submit(options, task=ref, task_id=task_id)
        session_id = session_of(task_id, 0)
        recording = await client.recording(session_id)
        tell({"session": session_id, "base_url": recording.base_url, "key": recording.key})
        async with ended_by(keep_in_use(client, session_id)):
            code = await (_run(command, recording.environment) if command else _until_interrupted())
        await _exited(client, session_id, code, reward)
        task_view = await _ended(client, task_id)
        view = await client.session(session_id)
        tell(line(view, task_view, code))
        for sentence in words(view):
            complain(sentence)
    return code if code >= 0 else 128 - code


def quirks_of(harness: str | None, file: Path | None) -> Quirks | None:
    """Return the quirks in a file, or those that the harness of this name declares. None: neither is given. Raises Usage, HarnessError."""
    if harness is not None and file is not None:
        msg = "--harness and --quirks contradict each other: the file replaces the quirks of the harness"
        raise Usage(msg)
    if file is not None:
        return read_quirks(file)
    return None if harness is None else harness_named(harness).quirks


def _check_program(name: str) -> None:
    if shutil.which(name) is None:
        msg = f"{name!r} is not executable" if "/" in name and Path(name).is_file() else f"there is no program {name!r}"
        raise NotRunnable(msg)


async def _put(client: Client, task: Path) -> TaskRef:
    packed = await asyncio.to_thread(pack, task)
    await client.put_blob(packed.data)
    return packed.ref


async def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the program with the session's variables; return its exit code, negative for a signal. Ctrl-C reaches the program too."""
    own = {name: value for name, value in os.environ.items() if name not in UNSET}
    program = await asyncio.create_subprocess_exec(*command, env={**own, **environment})
    with on_signals(lambda number: program.terminate() if number == signal.SIGTERM else None):
        return await program.wait()


async def _until_interrupted() -> int:
    """Keep the session open for any program that uses its base URL and key."""
    left = asyncio.Event()
    with on_signals(lambda _: left.set()):
        await left.wait()
    return 0


async def keep_in_use(client: Client, session_id: str, beat_seconds: float = BEAT_SECONDS) -> None:
    """Tell the runner that the session is in use, until cancelled or the token is refused. What is wrong is told once until it changes."""
    told = ""
    while True:
        problem = ""
        try:
            await client.recording_heartbeat(session_id)
        except TokenRefused as error:
            complain(f"session {session_id} ends soon, as nobody keeps it in use: {error}")
            return
        except ClientError as error:
            problem = str(error)
        if problem and problem != told:
            complain(problem)
        told = problem
        await asyncio.sleep(beat_seconds)


async def _exited(client: Client, session_id: str, code: int, reward: float | None) -> None:
    """Report the exit to the runner. If the runner has ended the session already, say so, and that the reward is lost."""
    try:
        await client.recording_exited(session_id, exit_code=code, reward=reward)
    except ClientError as error:
        complain(f"session {session_id} ended before its program did: {error}{'; its reward is lost' if reward is not None else ''}")


async def _ended(client: Client, task_id: str) -> TaskView | None:
    """Wait until the recording was rebuilt and graded. None: it takes too long."""
    try:
        async with asyncio.timeout(GRADING_SECONDS):
            return await anext(view async for view in client.watch(task_id) if view.outcome is not None)
    except TimeoutError:
        complain(f"task {task_id} was not graded within {GRADING_SECONDS:g} s; grading continues if `evener up` runs")
        return None
