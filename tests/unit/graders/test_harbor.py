"""Harbor's contract, in real local sandboxes."""

import asyncio
import io
import json
import tarfile
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.builders import built
from tests.support.grading import GradingBench, open_bench
from tests.support.waiting import eventually

from evener.blobs.open import open_blobs
from evener.graders import harbor
from evener.graders.port import Grade, GraderError, GraderRefused, GradingContext
from evener.graders.task_tests import last_lines


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[GradingBench]:
    async with open_bench(tmp_path) as opened:
        yield opened


async def grade(bench: GradingBench, script: str, **left: Any) -> Grade:
    """Grade what an agent left by a test script."""
    files = {
        "instruction.md": "Write the answer.",
        "task.toml": "[verifier]\ntimeout_sec = 60.0\n",
        "environment/given.txt": "given\n",
        "tests/test.sh": f"#!/bin/sh\n{script}\n",
        "tests/helper.sh": "echo helped\n",
    }
    return await bench.grade("harbor", files=files, **left)


async def test_tests_see_the_task_with_what_the_agent_changed(bench: GradingBench) -> None:
    """The given file is there anew, the agent's is added, the tests' own files came with them."""
    script = """
    sh /tests/helper.sh
    [ "$(cat given.txt)" = given ] && [ "$(cat answer.txt)" = 42 ] && echo 1.0 > /logs/verifier/reward.txt
    """
    got = await grade(bench, script, changed={"app/answer.txt": "42"})

    assert (got.reward, got.rewards) == (1.0, {"reward": 1.0})
    assert b"helped" in bench.evidence["test-stdout.txt"]


async def test_removed_files_are_gone(bench: GradingBench) -> None:
    script = "[ -e given.txt ] && echo 0 > /logs/verifier/reward.txt || echo 1 > /logs/verifier/reward.txt"

    assert (await grade(bench, script, removed=("app/given.txt",))).reward == 1.0
    assert (await grade(bench, script)).reward == 0.0


async def test_json_is_read_before_text_and_its_mean_is_the_reward(bench: GradingBench) -> None:
    both = 'echo \'{"style": 0.5, "speed": 1}\' > /logs/verifier/reward.json; echo 0 > /logs/verifier/reward.txt'
    named = 'echo \'{"style": 0.5, "reward": 1}\' > /logs/verifier/reward.json'

    assert (await grade(bench, both)).reward == 0.75
    assert (await grade(bench, named)).rewards == {"style": 0.5, "reward": 1.0}
    assert (await grade(bench, named)).reward == 1.0


async def test_exit_status_of_the_tests_means_nothing(bench: GradingBench) -> None:
    assert (await grade(bench, "echo 1 > /logs/verifier/reward.txt; exit 3")).reward == 1.0


@pytest.mark.parametrize(
    "script",
    [
        "exit 0",
        ": > /logs/verifier/reward.txt",
        "echo good > /logs/verifier/reward.txt",
        "echo nan > /logs/verifier/reward.txt",
        "echo inf > /logs/verifier/reward.txt",
        "echo '{}' > /logs/verifier/reward.json",
        "echo 1.0 > /logs/verifier/reward.json",
        'echo \'{"reward": "1"}\' > /logs/verifier/reward.json',
        ": > /logs/verifier/reward.json; echo 1 > /logs/verifier/reward.txt",
    ],
)
async def test_reward_that_is_missing_or_unreadable_is_an_error_and_not_zero(bench: GradingBench, script: str) -> None:
    """The tests' output is kept and its end is told, so that somebody can mend them."""
    with pytest.raises(GraderError, match=r"its last lines: first\ntried\. "):
        await grade(bench, f"echo first; echo tried; {script}")
    assert b"tried" in bench.evidence["test-stdout.txt"]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("truncate -s 1G /logs/verifier/reward.json", "reward.json is not read: more than 1048576 bytes"),
        ("mkfifo /logs/verifier/reward.txt", "reward.txt is not read: no regular file"),
        ("mkdir /logs/verifier/reward.txt", "reward.txt is not read: no regular file"),
        ("ln -s /etc/passwd /logs/verifier/reward.txt", "reward.txt is not read: a link"),
        ("ln -s /dev/zero /logs/verifier/reward.json", "reward.json is not read: a link"),
        ("rm -r /logs/verifier; ln -s /tmp /logs/verifier", "is not read"),
    ],
)
async def test_reward_that_is_no_plain_small_file_is_an_error_that_says_so(bench: GradingBench, script: str, reason: str) -> None:
    """Reading it would wait for ever, fill the memory, or show a file of ours."""
    with pytest.raises(GraderError, match=reason):
        await grade(bench, script)


async def test_output_is_kept_of_tests_that_were_called_off(bench: GradingBench, tmp_path: Path) -> None:
    """The evaluator's own time limit cancels a grading."""
    begun = tmp_path / "begun"
    task = asyncio.ensure_future(grade(bench, f"echo half; touch {begun}; sleep 600"))
    await eventually(begun.exists)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert bench.evidence["test-stdout.txt"] == b"half\n"
    assert json.loads(bench.evidence["grading.json"]).keys() == {"exit_code", "timed_out", "seconds", "unread"}


async def test_last_lines_of_the_tests_are_cut(bench: GradingBench) -> None:
    """A reason is read by people; all of the output is in the evidence."""
    with pytest.raises(GraderError) as raised:
        await grade(bench, "yes line | head -n 3000000; echo the end; exit 4")

    told = raised.value.what
    assert told.startswith(
        "tests/test.sh exited with 4 and wrote neither /logs/verifier/reward.json nor reward.txt; its last lines: line\n"
    )
    assert told.endswith("line\nthe end")
    assert len(told) < 1200
    assert len(bench.evidence["test-stdout.txt"]) < 1.1 * 2**20


async def test_agent_cannot_lead_the_verifiers_files_elsewhere(bench: GradingBench) -> None:
    """A link in the place of `/logs` would let it write its own reward."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as opened:
        link = tarfile.TarInfo("logs")
        link.type, link.linkname = tarfile.SYMTYPE, "app/mine"
        opened.addfile(link)
        opened.addfile(tarfile.TarInfo("app/mine/verifier/reward.txt"))
    got = await grade(bench, "[ -L /logs ] && exit 1; echo 0 > /logs/verifier/reward.txt", archive=archive.getvalue())

    assert got.reward == 0.0


async def test_agent_that_removes_the_places_of_its_sandbox_is_graded(bench: GradingBench) -> None:
    """`rm -rf` of everything is its own doing."""
    removed = ("app", "app/given.txt", "logs", "logs/agent", "logs/artifacts")
    assert (await grade(bench, "[ -e given.txt ] || echo 0 > /logs/verifier/reward.txt", removed=removed)).reward == 0.0


async def test_verifier_may_leave_what_it_likes(bench: GradingBench) -> None:
    """Deep folders, a process without a mark that holds its output open, gigabytes of output."""
    deep = "python3 -c \"import os\nfor _ in range(1100): os.mkdir('d'); os.chdir('d')\""
    script = f"{deep}; env -i setsid sleep 1000 & yes | head -c 100000000; echo 1 > /logs/verifier/reward.txt"

    assert (await grade(bench, script)).reward == 1.0


async def test_names_that_are_no_utf8_are_removed_too(bench: GradingBench) -> None:
    assert (await grade(bench, "echo 1 > /logs/verifier/reward.txt", removed=("app/\udcff",))).reward == 1.0


async def test_reward_that_the_agent_wrote_itself_is_not_believed(bench: GradingBench) -> None:
    """Files in the verifier's places never come from the agent."""
    with pytest.raises(GraderError):
        await grade(bench, "exit 1", changed={"logs/verifier/reward.txt": "1.0"})


async def test_session_without_a_task_is_refused(bench: GradingBench) -> None:
    context = GradingContext(trajectory=built(), blobs=open_blobs("memory://"), sandboxes=bench._sandboxes, name="grading")
    with pytest.raises(GraderRefused, match="recording"):
        await harbor.grade(context)


async def test_session_whose_changes_were_not_kept_is_refused_and_not_zero(bench: GradingBench) -> None:
    """The tests would see an environment in which nobody worked."""
    with pytest.raises(GraderRefused, match="changed files were not kept: too large"):
        await grade(bench, "echo 0 > /logs/verifier/reward.txt", lost="changed files were not kept: too large")


def test_only_the_end_of_what_tests_printed_is_read_for_a_message() -> None:
    """A million lines, each a string of its own, stopped the evaluator's loop for 66 ms."""
    printed = b"x\n" * 1_000_000 + b"\xc3\xa9 the end\n\n"
    tracemalloc.start()
    told = last_lines(printed)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert told == "its last lines: " + "x\n" * 9 + "\u00e9 the end"
    assert most < 2 * len(printed)
    assert last_lines(b" \n" * 100) == last_lines(None) == "it printed nothing"
