"""What a harness does to the machine that it runs on, what it leaves behind, and what the tests of its task write as a reward."""

import asyncio
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import EllipsisType
from typing import Any, Final

from proofs.hostile.input import Input, Kind, Unexpected
from proofs.hostile.running import Site

from evener.client.views import TaskDetail
from evener.proto.reasons import TerminationReason
from evener.proto.spec import Budgets, GraderSpec
from evener.proto.tasks import TaskOutcome
from evener.tasks.test_markers import END, START

GIB: Final = 1 << 30
DONE: Final = (TerminationReason.FINISHED,)
FAILED: Final = (TerminationReason.HARNESS_FAILED,)
GONE_SECONDS: Final = 30.0
MANY_FILES: Final = {"instruction.md": "Go on.", **{f"tests/data/{n % 50}/{n}.txt": "x" for n in range(9900)}}
GIVEN: Final = {"environment/given.txt": "x", "environment/given/file": "x"}


Worth = float | EllipsisType | None
"""The reward that a session is merged with. None: its group fails, and says why. `...`: the one or the other."""


def work(kind: Kind, name: str, *behaviour: str, ends: Sequence[TerminationReason] = DONE, reward: Worth = 1.0, **given: Any) -> Input:
    """Return the input that runs a behaviour of `agent.py` on a task."""
    own = {key: given.pop(key) for key in ("seconds", "review") if key in given}

    async def act(site: Site) -> None:
        expect(await site.work(behaviour, **given), ends, reward)

    return Input(kind=kind, name=name, act=act, **own)


def expect(detail: TaskDetail, ends: Sequence[TerminationReason], reward: Worth) -> None:
    """Raise Unexpected unless a task of one session ended so."""
    view, session = detail.task, detail.sessions[0]
    how = f"{session.termination_reason} {session.detail[:200]!r}, {view.outcome} {view.rewards} {view.reason[:200]!r}"
    if session.termination_reason not in ends:
        msg = f"its session ended as {how}"
        raise Unexpected(msg)
    if reward is ... and view.outcome is TaskOutcome.MERGED:
        return
    if (reward is None or reward is ...) and not (view.outcome is TaskOutcome.FAILED and view.reason):
        msg = f"its group did not fail with a reason: {how}"
        raise Unexpected(msg)
    if isinstance(reward, float) and (view.outcome is not TaskOutcome.MERGED or view.rewards != (reward,)):
        msg = f"its group was not merged with {reward}: {how}"
        raise Unexpected(msg)


def survivor(name: str, behaviour: str, **given: Any) -> Input:
    """Return the input whose harness leaves a process behind, that must be gone when the session is over."""

    async def act(site: Site) -> None:
        told = site.folder / site.name("pid")
        try:
            expect(await site.work([behaviour, str(told)]), DONE, 1.0)
            pid = int(told.read_text())
            deadline = asyncio.get_running_loop().time() + GONE_SECONDS
            while _lives(pid):
                if asyncio.get_running_loop().time() > deadline:
                    os.kill(pid, 9)
                    msg = f"a process of its sandbox runs on: {name}"
                    raise Unexpected(msg)
                await asyncio.sleep(0.05)
        finally:
            with suppress(OSError, ValueError):
                os.kill(int(told.read_text()), 9)

    return Input(kind=Kind.HARNESS, name=name, act=act, **given)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def reward(name: str, script: str, worth: Worth) -> Input:
    """Return the input whose tests are this script. `worth`: the reward. None: there is none, and the group says so."""
    return work(Kind.REWARDS, name, "exit_code", "0", reward=worth, test_sh=script)


def printed(name: str, script: str, parser: str = "pytest") -> Input:
    """Return the input whose tests print this as the output of a test runner, in which the one test that counts is missing."""
    expected = {"tests/expected.json": json.dumps({"parser": parser, "fail_to_pass": ["a"]})}
    return work(
        Kind.REWARDS,
        f"tests print {name}",
        "exit_code",
        "0",
        reward=0.0,
        test_sh=f"echo '{START}'\n{script}\necho\necho '{END}'\n",
        files=expected,
        grader=GraderSpec(name="test_log", options={"expected": "expected.json"}),
    )


def _text(content: str) -> str:
    return f"printf -- '{content}' > /logs/verifier/reward.txt\n"


def _json(content: str) -> str:
    return f"printf '%s' '{content}' > /logs/verifier/reward.json\n"


HARNESS: Final = (
    survivor("leaves an orphan with neither our environment nor our session", "orphan", review="1.14"),
    survivor("leaves a daemon that keeps its output open and hears no signal", "daemon"),
    work(Kind.HARNESS, "leaves 500 processes", "forks", "500", seconds=60),
    work(Kind.HARNESS, "prints three million lines of JSON", "lines", "3000000", seconds=60),
    work(Kind.HARNESS, "is killed with SIGKILL", "killed", "9", ends=FAILED),
    work(Kind.HARNESS, "dies of SIGSEGV", "killed", "11", ends=FAILED),
    work(Kind.HARNESS, "freezes", "stopped", ends=(TerminationReason.AGENT_TIME,), budgets=Budgets(attempts=1, agent_seconds=1.5)),
    work(
        Kind.HARNESS,
        "hears no signal and never ends",
        "deaf",
        ends=(TerminationReason.AGENT_TIME,),
        budgets=Budgets(attempts=1, agent_seconds=1.5),
    ),
    work(Kind.HARNESS, "closes its output and goes on", "mute"),
    work(Kind.HARNESS, "prints 1 GB without an end of line", "noisy", str(GIB), seconds=60),
    work(Kind.HARNESS, "prints what is no text, and fails", "binary", ends=FAILED),
    work(Kind.HARNESS, "exits with 255", "exit_code", "255", ends=FAILED),
    work(Kind.HARNESS, "exits while 20 calls are open", "open_calls", "20"),
    work(Kind.HARNESS, "is a program that is not there", argv=["/no/such/program"], ends=(TerminationReason.NO_START,), reward=None),
    work(Kind.HARNESS, "is a folder", argv=["/"], ends=(TerminationReason.NO_START, *FAILED), reward=None),
    work(Kind.HARNESS, "has an empty name", argv=["", "x"], ends=(TerminationReason.NO_START,), reward=None),
    work(Kind.HARNESS, "has NUL in its arguments", argv=["true", "a\x00b"], ends=(TerminationReason.NO_START, *DONE), reward=...),
    work(Kind.HARNESS, "has NUL in its name", argv=["tr\x00ue"], ends=(TerminationReason.NO_START,), reward=None),
    work(
        Kind.HARNESS,
        "has an argument beyond the kernel's limit",
        argv=["true", "{instruction}"],
        files={"instruction.md": "a" * (3 << 20)},
        ends=(TerminationReason.NO_START, TerminationReason.ATTEMPTS_USED_UP),
        reward=None,
    ),
    work(
        Kind.HARNESS,
        "has an instruction with NUL as argument",
        argv=["true", "{instruction}"],
        files={"instruction.md": "a\x00b"},
        ends=(TerminationReason.NO_START, *DONE),
        reward=...,
    ),
    work(
        Kind.HARNESS,
        "has an environment with NUL and '='",
        "steps",
        files={"task.toml": '[environment]\nenv = {"A=B" = "x", "C" = "a\\u0000b"}\n'},
        ends=(TerminationReason.NO_START, *DONE),
        reward=...,
    ),
)
FILES: Final = (
    work(Kind.FILES, "a tree of directories 1,100 deep", "deep", "1100", reward=..., review="1.2"),
    work(Kind.FILES, "a tree of directories 5,000 deep", "deep", "5000", reward=..., review="1.2"),
    work(Kind.FILES, "a tree of directories 60 deep", "deep", "60"),
    work(Kind.FILES, "a sparse file of 6 GB", "sparse", str(6 * GIB), reward=..., review="1.4"),
    work(Kind.FILES, "a sparse file of 1 TB", "sparse", str(1024 * GIB), reward=..., review="1.4"),
    work(Kind.FILES, "a file of 64 MB", "large"),
    work(Kind.FILES, "100,000 small files", "many", "100000", reward=..., seconds=60),
    work(Kind.FILES, "5,000 small files", "many", "5000", seconds=60),
    work(Kind.FILES, "9,900 small files", "many", "9900", seconds=60),
    work(Kind.FILES, "400 names of one file of 1 MB", "hard_links", seconds=60, reward=...),
    work(Kind.FILES, "names that are hard to write down", "odd_names"),
    work(Kind.FILES, "a named pipe", "fifo"),
    work(Kind.FILES, "a socket", "unix_socket"),
    work(Kind.FILES, "a device", "device"),
    work(Kind.FILES, "links outwards, to nothing, in rings", "links"),
    work(Kind.FILES, "a file and a folder that may not be opened", "locked"),
    work(Kind.FILES, "9,900 files that the task brings", "steps", files=MANY_FILES, seconds=60),
    work(Kind.FILES, "folders in the place of files, and files of folders", "replaced", files=GIVEN),
    work(Kind.FILES, "the working directory is gone", "gone", reward=...),
    work(Kind.FILES, "a file in the place of the home folder", "home_gone"),
    work(Kind.FILES, "a file that grows while it is read", "growing"),
)
REWARDS: Final = (
    work(
        Kind.REWARDS,
        "a regular expression that parts the answer in every way",
        "steps",
        reward=None,
        files={"instruction.md": "Go on, step by step, in 3 steps."},
        grader=GraderSpec(name="answer", options={"expected": "^(?:.|..)+[^ -~]$", "match": "regex"}),
    ),
    printed("a line of 80,000 colons", "head -c 80000 /dev/zero | tr '\\0' ':'"),
    printed("a test's name and 100,000 blanks", "printf 'a::b'; head -c 100000 /dev/zero | tr '\\0' ' '"),
    printed("a line of 15,000 times ' ... '", "yes ' ... ' | head -15000 | tr -d '\\n'", "unittest"),
    printed("12 MB of tests that passed", "yes 'PASSED tests/test_x.py::test_a' | head -c 12000000"),
    printed("12 MB of empty lines", "yes '' | head -c 12000000"),
    reward("none", "true\n", None),
    reward("none, and tests that print 100 MB", "head -c 100000000 /dev/zero\n", None),
    reward("none, and tests that print a million lines", "yes '' | head -c 1000000; echo the end\n", None),
    reward("none, and tests that leave a daemon", "setsid sleep 60 &\n", None),
    reward("empty", _text(""), None),
    reward("NaN", _text("nan"), None),
    reward("infinity", _text("inf"), None),
    reward("1e309", _text("1e309"), None),
    reward("-0", _text("-0"), -0.0),
    reward("digits of another script", _text("\u0661"), ...),
    reward("an underscore between digits", _text("1_0"), ...),
    reward("two numbers", _text("1 2"), None),
    reward("what is no UTF-8", _text("\\377\\376"), None),
    reward("a number with blanks around it", _text("  0.5\\n"), 0.5),
    reward("a million digits", "head -c 1000000 /dev/zero | tr '\\\\0' 9 > /logs/verifier/reward.txt\n", None),
    reward("3 GB", "truncate -s 3G /logs/verifier/reward.txt\n", None),
    reward("a named pipe", "mkfifo /logs/verifier/reward.txt\n", None),
    reward("a folder", "mkdir /logs/verifier/reward.txt\n", None),
    reward("a link to an endless file", "ln -s /dev/zero /logs/verifier/reward.txt\n", None),
    reward("a link to itself", "ln -s reward.txt /logs/verifier/reward.txt\n", None),
    reward("its folder is gone", "rm -rf /logs/verifier\n", None),
    reward("its folder is a link", "rm -rf /logs/verifier; ln -s /etc /logs/verifier\n", None),
    reward("JSON with NaN", _json('{"reward": NaN}'), None),
    reward("JSON with 1e400", _json('{"reward": 1e400}'), None),
    reward("JSON of a list", _json("[1]"), None),
    reward("JSON of nested objects", _json('{"reward": {"a": 1}}'), None),
    reward("JSON of nothing", _json("{}"), None),
    reward("JSON of 100,000 levels", "head -c 100000 /dev/zero | tr '\\\\0' '[' > /logs/verifier/reward.json\n", None),
    reward(
        "JSON of ten thousand rewards",
        'seq 10000 | sed \'s/.*/"r&": 1,/\' | (echo "{"; cat; echo "\\"reward\\": 1}") > /logs/verifier/reward.json\n',
        1.0,
    ),
)
