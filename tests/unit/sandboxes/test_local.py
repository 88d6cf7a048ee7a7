"""Local sandboxes with real processes: nothing outlives its sandbox, its runner, or the next start."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
from tests.support.spent import descriptors_used_up, disk_of
from tests.support.waiting import eventually

from evener.sandboxes.grading import Grading, grade
from evener.sandboxes.local import LocalSandboxes, LocalTimings, open_local
from evener.sandboxes.port import (
    ChangeLimits,
    Changes,
    Process,
    Program,
    ProgramMissing,
    SandboxError,
    SandboxHeld,
    SandboxLost,
    Unstartable,
)

LIMITS = ChangeLimits()
PATIENT: Final = LocalTimings(start_seconds=60.0, close_seconds=60.0)
"""On a busy machine too, what can be removed is removed before a start or an end goes on."""
HANG_SECONDS = 3.0
"""What tests get that hang: enough to begin."""
STRAY = "setsid sh -c 'echo $$ > {pid}; exec sleep 1000' </dev/null >/dev/null 2>&1 & until [ -s {pid} ]; do sleep 0.01; done;"
"""Starts what leaves the group and the session, and stays."""
ABANDONED = """
export KEEPER=$PPID
setsid sh -c '
  while grep -q "State:.[^Z]" /proc/$KEEPER/status; do sleep 0.01; done
  echo $$ > {pid}
  exec sleep 1000
' </dev/null >/dev/null 2>&1 &
kill -STOP $(sed -n s/PPid:.//p /proc/$PPID/status)
kill -9 $PPID
"""
"""Starts what outlives its keeper, and lets the runner not see that."""
RUNNER = """
import asyncio, sys
from pathlib import Path
from evener.sandboxes.local import open_local
from evener.sandboxes.port import Program, ProgramMissing

async def main():
    async with open_local(Path(sys.argv[1])) as sandboxes, sandboxes.open("s") as sandbox:
        process = await sandbox.start(Program(argv=("sh", "-c", sys.argv[2])))
        print("started", flush=True)
        await process.wait()

asyncio.run(main())
"""


@pytest.fixture
async def sandboxes(tmp_path: Path) -> AsyncIterator[LocalSandboxes]:
    async with open_local(tmp_path / "sandboxes", PATIENT) as opened:
        yield opened


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def left_in(root: Path) -> list[str]:
    """Return what is there of sandboxes, those that are being removed included."""
    return [path.name for path in (*root.iterdir(), *(root / ".removed").iterdir()) if path.name not in {".held", ".removed"}]


async def gone(pid: int) -> None:
    await eventually(lambda: not runs(pid))


async def pid_in(path: Path) -> int:
    await eventually(lambda: path.exists() and path.read_text().endswith("\n"))
    return int(await asyncio.to_thread(path.read_text))


async def killed_runner(root: Path, script: str, *pids: Path) -> list[int]:
    """Run a harness in a runner of its own, wait for its pid files, and kill the runner."""
    runner = await asyncio.create_subprocess_exec(sys.executable, "-c", RUNNER, str(root), script, stdout=asyncio.subprocess.PIPE)
    found = [await pid_in(pid) for pid in pids]
    runner.kill()
    await runner.communicate()
    return found


async def test_a_program_sees_its_own_environment_and_nothing_of_ours(sandboxes: LocalSandboxes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key in the runner's environment must not reach what a model drives."""
    monkeypatch.setenv("SECRET_KEY", "x")
    async with sandboxes.open("s") as sandbox:
        process = await sandbox.start(Program(argv=("env",), environment={"GIVEN": "1"}))
        assert await process.wait() == 0
        seen = dict(line.split("=", 1) for line in process.log().decode().splitlines())

    assert seen.keys() - {"PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE"} == {
        *("PATH", "HOME", "TMPDIR", "LANG", "GIVEN", "EVENER_SANDBOX"),
        *("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"),
    }
    assert seen["HOME"] == sandbox.inside("/home/agent")


@pytest.mark.parametrize(("script", "code"), [("exit 3", 3), ("kill -9 $$", -9), ("cat", 0), ("nosuchcommand", 127)])
async def test_exit_codes(sandboxes: LocalSandboxes, script: str, code: int) -> None:
    """A signal is negative; a program that reads stdin finds it closed."""
    async with sandboxes.open("s") as sandbox:
        process = await sandbox.start(Program(argv=("sh", "-c", script)))
        assert await process.wait() == code


@pytest.mark.parametrize("program", [Program(argv=("true", "a\0b")), Program(argv=("true",), environment={"A": "b\0c"})])
async def test_a_program_that_no_try_can_start_says_so(sandboxes: LocalSandboxes, program: Program) -> None:
    """A NUL in an argument or a variable: another attempt would meet it again."""
    async with sandboxes.open("one") as sandbox:
        with pytest.raises(Unstartable, match="cannot start 'true': embedded null byte"):
            await sandbox.start(program)


async def test_an_argument_that_the_system_does_not_take_says_so(sandboxes: LocalSandboxes) -> None:
    """An instruction of 200 KB in an argument: all attempts would be lost one after the other, as if their sandboxes were."""
    async with sandboxes.open("one") as sandbox:
        with pytest.raises(Unstartable, match=r"longer than the system takes \(the longest is argument 1 with 200000 characters"):
            await sandbox.start(Program(argv=("true", "x" * 200_000)))


async def test_a_missing_program_says_its_name(sandboxes: LocalSandboxes) -> None:
    """Nothing is started: it is not the program that failed."""
    async with sandboxes.open("s") as sandbox:
        with pytest.raises(ProgramMissing, match="there is no program nosuchcommand"):
            await sandbox.start(Program(argv=("nosuchcommand",)))


async def test_a_file_that_is_not_executable_is_not_called_missing(sandboxes: LocalSandboxes) -> None:
    async with sandboxes.open("s") as sandbox:
        with pytest.raises(ProgramMissing, match="/etc/passwd is not executable"):
            await sandbox.start(Program(argv=("/etc/passwd",)))


async def test_what_a_program_leaves_running_dies_with_it(sandboxes: LocalSandboxes, tmp_path: Path) -> None:
    """A child in a session of its own is found by its environment."""
    pid = tmp_path / "pid"
    async with sandboxes.open("s") as sandbox:
        process = await sandbox.start(Program(argv=("sh", "-c", STRAY.format(pid=pid))))
        await process.wait()
        await gone(await pid_in(pid))

        stubborn = await sandbox.start(Program(argv=("sh", "-c", f"trap '' TERM; {STRAY.format(pid=tmp_path / 'pid2')} sleep 1000")))
        stray = await pid_in(tmp_path / "pid2")
        assert await stubborn.end(grace_seconds=0.1) == -signal.SIGKILL
        assert not runs(stray)


async def test_a_harness_dies_with_its_runner(tmp_path: Path) -> None:
    """The runner is killed with SIGKILL and can do nothing itself."""
    [pid] = await killed_runner(tmp_path / "s", f"echo $$ > {tmp_path}/pid; exec sleep 1000", tmp_path / "pid")

    await gone(pid)


async def test_a_starting_runner_kills_and_removes_what_a_dead_one_left(tmp_path: Path) -> None:
    """A grandchild whose keeper was killed too: the next start finds it by its environment."""
    root = tmp_path / "sandboxes"
    [pid] = await killed_runner(root, ABANDONED.format(pid=tmp_path / "pid"), tmp_path / "pid")
    assert runs(pid)

    async with open_local(root, PATIENT):
        assert not runs(pid)
        assert left_in(root) == []


async def test_a_second_runner_is_refused_and_kills_nothing(sandboxes: LocalSandboxes, tmp_path: Path) -> None:
    """Two runners on one folder would reap each other's harnesses."""
    async with sandboxes.open("s") as sandbox:
        process = await sandbox.start(Program(argv=("sleep", "1000")))
        with pytest.raises(SandboxHeld, match="belong to a process that runs"):
            async with open_local(tmp_path / "sandboxes"):
                pass
        assert await process.end() == -signal.SIGTERM


async def test_folder_that_a_shell_would_split_is_refused(tmp_path: Path) -> None:
    """The tests of tasks are rewritten to name it, and are shell scripts."""
    with pytest.raises(SandboxError, match="' ' in its path"):
        async with open_local(tmp_path / "my sandboxes"):
            pass


async def test_a_flood_of_output_is_cut_in_the_middle(sandboxes: LocalSandboxes) -> None:
    """A harness that prints for ever costs no memory and does not block on its pipe."""
    async with sandboxes.open("s") as sandbox:
        flood = "echo first; yes | head -c 3000000; echo last"
        process = await sandbox.start(Program(argv=("sh", "-c", flood), log_bytes=1000))
        assert await process.wait() == 0

    log = process.log()
    assert log.startswith(b"first\n")
    assert log.endswith(b"last\n")
    assert len(log) < 1100


async def test_home_and_tmp_are_not_part_of_the_changes(sandboxes: LocalSandboxes) -> None:
    """A harness's own state is not the agent's work; neither is what was there before."""
    async with sandboxes.open("s") as sandbox:
        await sandbox.write({"/app/given.txt": b"given"})
        await sandbox.settle()
        script = 'echo x > new.txt; echo x > "$HOME/state"; echo x > "$TMPDIR/t"; rm given.txt'
        await (await sandbox.start(Program(argv=("sh", "-c", script)))).wait()
        changes = await sandbox.changes(LIMITS)

    async with sandboxes.open("g") as grader:
        await grader.write({"/app/given.txt": b"given"})
        await grader.apply(changes)
        assert await grader.read("/app/new.txt") == b"x\n"
        assert await grader.read("/app/given.txt") is None
    assert changes.removed == ("app/given.txt",)


async def test_an_agent_cannot_bring_its_own_tests_or_reward(sandboxes: LocalSandboxes) -> None:
    """Changes that name the verifier's places are refused as a whole."""
    async with sandboxes.open("g") as grader:
        with pytest.raises(SandboxError, match="not allowed"):
            await grader.apply(Changes(archive=b"", removed=("logs/verifier/reward.txt",)))


async def test_grading_runs_the_tests_on_the_changed_copy(sandboxes: LocalSandboxes, tmp_path: Path) -> None:
    """Container paths in the tests lead into the sandbox, and the exit status is not the reward."""
    for name, text in {
        "files/question.txt": "6*7",
        "tests/test.sh": "#!/bin/bash\npython3 /tests/check.py\necho checked\nexit 7\n",
        "tests/check.py": (
            "from pathlib import Path\n"
            "right = Path('/app/answer.txt').read_text() == '42' and Path('question.txt').read_text() == '6*7'\n"
            'Path("/logs/verifier/reward.json").write_text(\'{"reward": %d}\' % right)\n'
        ),
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    async with sandboxes.open("s") as sandbox:
        await sandbox.bring(tmp_path / "files", "/app")
        await sandbox.settle()
        await sandbox.write({"/app/answer.txt": b"42"})
        changes = await sandbox.changes(LIMITS)

    graded = await grade(sandboxes, Grading(name="g", files=tmp_path / "files", tests=(tmp_path / "tests",), changes=changes))
    without = await grade(sandboxes, Grading(name="g", files=tmp_path / "files", tests=(tmp_path / "tests",)))

    assert (graded.exit_code, graded.reward_json, graded.reward_text) == (7, b'{"reward": 1}', None)
    assert graded.output == b"checked\n"
    assert without.reward_json is None
    assert b"FileNotFoundError" in (without.output or b"")


async def test_tests_that_hang_are_ended_at_their_limit(sandboxes: LocalSandboxes, tmp_path: Path) -> None:
    """What they wrote before counts; their children die too."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test.sh").write_text("echo 0.5 > /logs/verifier/reward.txt; sleep 1000 & wait")

    graded = await grade(sandboxes, Grading(name="g", files=None, tests=(tmp_path / "tests",), seconds=HANG_SECONDS))

    assert (graded.exit_code, graded.reward_text) == (None, b"0.5\n")


async def test_a_sandbox_is_removed_whatever_rights_its_files_have(sandboxes: LocalSandboxes, tmp_path: Path) -> None:
    """Also when its body was cancelled."""
    async with sandboxes.open("s") as sandbox:
        process: Process = await sandbox.start(Program(argv=("sh", "-c", "mkdir -p d/e; touch d/e/f; chmod 000 d")))
        await process.wait()

    assert left_in(tmp_path / "sandboxes") == []


async def test_machine_at_its_limit_does_not_make_a_file_unreadable(sandboxes: LocalSandboxes) -> None:
    """Otherwise a reward would be missing, or a change of the agent's be left out."""
    async with sandboxes.open("s") as sandbox:
        await sandbox.write({"/app/answer": b"42"})
        with descriptors_used_up(), pytest.raises(SandboxError, match=r"cannot read /app/answer: .*Too many open files"):
            await sandbox.read("/app/answer")

        assert await sandbox.read("/app/answer") == b"42"


@pytest.mark.parametrize("others", ["before", "during"])
async def test_tests_on_a_full_disk_grade_nothing(tmp_path: Path, others: str) -> None:
    """They would fail whatever the agent did; with room they do not."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test.sh").write_text(
        "if head -c 500000 /dev/zero > cache; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
    )
    take = {"before": "", "during": "head -c 6000000 /dev/zero > /app/taken\n"}
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "test.sh").write_text(f"{take[others]}echo 0 > /logs/verifier/reward.txt\n")
    with disk_of(tmp_path / "disk", 8 << 20) as disk:
        async with open_local(disk / "sandboxes", PATIENT, free_bytes=4 << 20) as small:
            with_room = await grade(small, Grading(name="a", files=None, tests=[tmp_path / "tests"]))
            if others == "before":
                (disk / "taken").write_bytes(bytes(6_000_000))
            with pytest.raises(SandboxLost, match="less than the 4194304 that programs need"):
                await grade(small, Grading(name="b", files=None, tests=[tmp_path / "full"]))

        assert with_room.reward_text == b"1\n"
