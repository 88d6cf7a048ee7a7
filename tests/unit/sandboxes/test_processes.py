"""Nothing that a program of a sandbox starts outlives it, whatever it does to hide, and nothing it does makes its end wait for ever."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.waiting import eventually
from tests.unit.sandboxes.test_local import PATIENT, gone, killed_runner, pid_in, runs

from evener.sandboxes.local import LocalSandboxes, LocalTimings, open_local
from evener.sandboxes.port import Program

HIDDEN = "env -i setsid sh -c 'echo $$ > {pid}; exec sleep 1000' {output} & until [ -s {pid} ]; do sleep 0.01; done;"
"""Starts what leaves its group, its session and its environment, and stays."""
QUIET = "</dev/null >/dev/null 2>&1"
FLEEING = """
import os, sys, time
if len(sys.argv) == 2:
    for _ in range(8):
        if os.fork() == 0:
            os.setsid()
            os.environ.clear()
            break
    else:
        open(sys.argv[1], "w").write("flee")
        sys.exit(0)
end = time.monotonic() + 60
while time.monotonic() < end:
    if os.fork():
        os._exit(0)
    os.setsid()
"""
"""Eight processes, each of which forks, ends, and goes on in the child, in a new session each time: none lives for a millisecond."""


@pytest.fixture
async def sandboxes(tmp_path: Path) -> AsyncIterator[LocalSandboxes]:
    async with open_local(tmp_path / "sandboxes", PATIENT) as opened:
        yield opened


def shell(script: str) -> Program:
    return Program(argv=("sh", "-c", script))


async def test_process_that_cleared_its_environment_dies_with_its_program(sandboxes: LocalSandboxes, tmp_path: Path) -> None:
    """The mark is gone; it is still a descendant."""
    pid = tmp_path / "pid"
    async with sandboxes.open("s") as sandbox:
        process = await sandbox.start(shell(HIDDEN.format(pid=pid, output=QUIET) + "exit 3"))
        assert await process.wait() == 3

        assert not runs(await pid_in(pid))


async def test_process_that_cleared_its_environment_dies_with_its_runner(tmp_path: Path) -> None:
    """Nobody is left to tell the keeper but the kernel."""
    [pid] = await killed_runner(tmp_path / "s", HIDDEN.format(pid=tmp_path / "pid", output=QUIET) + "sleep 1000", tmp_path / "pid")

    await gone(pid)


async def test_process_that_keeps_the_output_open_holds_nobody_up(sandboxes: LocalSandboxes, tmp_path: Path) -> None:
    """An orphan that inherited stdout: its end is not the program's."""
    async with sandboxes.open("s") as sandbox:
        process = await sandbox.start(shell("echo said; " + HIDDEN.format(pid=tmp_path / "pid", output="") + "exit 0"))
        async with asyncio.timeout(60):
            assert await process.wait() == 0

        assert process.log() == b"said\n"


async def test_processes_that_fork_away_from_each_kill_are_ended(sandboxes: LocalSandboxes, tmp_path: Path) -> None:
    """Each is gone before it can be looked at; their keeper adopts the next one."""
    path = tmp_path / "begun"
    async with sandboxes.open("s") as sandbox:
        await sandbox.write({"/app/flee.py": FLEEING.encode()})
        process = await sandbox.start(Program(argv=("python3", "flee.py", str(path))))
        async with asyncio.timeout(60):
            assert await process.wait() == 0
        survivors = fleeing()

    assert path.read_text() == "flee"
    assert survivors == []


def fleeing() -> list[int]:
    """Return the processes that run the fleeing program."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"flee.py" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


async def test_program_that_kills_its_keeper_ends_with_what_is_marked(sandboxes: LocalSandboxes, tmp_path: Path) -> None:
    """It gains nothing but the loss of its exit code."""
    pid = tmp_path / "pid"
    stray = "setsid sh -c 'echo $$ > {pid}; exec sleep 1000' </dev/null >/dev/null 2>&1 & until [ -s {pid} ]; do sleep 0.01; done;"
    async with sandboxes.open("s") as sandbox:
        process = await sandbox.start(shell(stray.format(pid=pid) + "kill -9 $PPID; sleep 1000"))
        async with asyncio.timeout(60):
            assert await process.wait() == -signal.SIGKILL

        assert not runs(await pid_in(pid))


async def test_program_that_stops_its_keeper_is_ended(tmp_path: Path) -> None:
    """Asked in vain, the keeper is killed, and the program dies of it."""
    pid = tmp_path / "pid"
    async with open_local(tmp_path / "sandboxes", LocalTimings(keeper_seconds=0.1)) as sandboxes, sandboxes.open("s") as sandbox:
        process = await sandbox.start(shell(f"kill -STOP $PPID; echo $$ > {pid}; exec sleep 1000"))
        program = await pid_in(pid)
        async with asyncio.timeout(60):
            assert await process.end(grace_seconds=0.1) == -signal.SIGKILL

        await gone(program)


async def test_end_is_asked_for_before_it_is_forced(sandboxes: LocalSandboxes) -> None:
    """A program that was started a moment ago is asked too, and one that tidies up may."""
    async with sandboxes.open("s") as sandbox:
        assert await (await sandbox.start(Program(argv=("sleep", "1000")))).end(grace_seconds=30) == -signal.SIGTERM

        polite = await sandbox.start(shell("trap 'echo tidy; exit 5' TERM; echo ready; while :; do sleep 0.01; done"))
        await eventually(lambda: b"ready" in polite.log())
        assert await polite.end(grace_seconds=30) == 5
        assert polite.log().endswith(b"tidy\n")


async def test_closed_pipe_ends_a_program_as_it_does_anywhere(sandboxes: LocalSandboxes) -> None:
    """Python ignores SIGPIPE; what is started from it must not inherit that."""
    async with sandboxes.open("s") as sandbox:
        process = await sandbox.start(shell("(yes; echo $? >&2) | head -n 1"))
        await process.wait()

    assert sorted(process.log().split()) == [b"141", b"y"]
