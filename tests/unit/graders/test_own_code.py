"""Graders of people's own: Python functions and files, and several graders together."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.grading import GradingBench, open_bench

from evener.graders.port import Allowed, GraderError, GraderRefused
from evener.proto.spec import GraderPart

MODULE = "graders_of_a_test"
FUNCTIONS = """
def grade(session):
    return 0.5 if session["answer"] == "4" else 0

async def later(session):
    return {"rewards": {"a": 1, "b": 0}, "call_rewards": {session["calls"][0]["call_id"]: 0.1}}

def broken(session):
    raise ValueError("not today")

def odd(session):
    return object()

def unsure(session):
    return None

not_a_function = 4
"""


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[GradingBench]:
    async with open_bench(tmp_path) as opened:
        yield opened


@pytest.fixture
def allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Allowed:
    (tmp_path / f"{MODULE}.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    return Allowed(modules=(MODULE,))


async def test_function_grades_what_the_session_was(bench: GradingBench, allowed: Allowed) -> None:
    """A plain one in a thread, an asynchronous one on the loop; rewards of calls go along."""
    grade = await bench.grade("python", {"function": MODULE}, allowed=allowed)
    later = await bench.grade("python", {"function": f"{MODULE}:later"}, allowed=allowed)

    assert grade.reward == 0.5
    assert (later.reward, later.rewards, later.call_rewards) == (0.5, {"a": 1.0, "b": 0.0}, {"c1": 0.1})


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (f"{MODULE}:broken", ValueError),
        (f"{MODULE}:odd", GraderError),
        (f"{MODULE}:unsure", GraderError),
        (f"{MODULE}:missing", GraderRefused),
        (f"{MODULE}:not_a_function", GraderRefused),
        ("os:getcwd", GraderRefused),
        (f"{MODULE}.inner:grade", GraderRefused),
    ],
)
async def test_function_that_gives_no_number_gives_no_reward(
    bench: GradingBench, allowed: Allowed, function: str, error: type[Exception]
) -> None:
    """Nor is a module imported that the operator has not allowed."""
    with pytest.raises(error):
        await bench.grade("python", {"function": function}, allowed=allowed)


async def test_file_of_the_task_grades_in_a_sandbox_with_the_changes_of_the_agent(bench: GradingBench) -> None:
    """It imports its neighbours' data by relative paths, and never runs in the evaluator."""
    script = """
import os, pathlib
def grade(session):
    assert "PYTEST_CURRENT_TEST" not in os.environ
    print("looking")
    return {"reward": float(pathlib.Path("result.txt").read_text()), "call_rewards": {"c1": 1.0}}
"""
    grade = await bench.grade("python", {"file": "check.py"}, files={"tests/check.py": script}, changed={"app/result.txt": "0.125"})

    assert (grade.reward, grade.call_rewards) == (0.125, {"c1": 1.0})
    assert bench.evidence["test-stdout.txt"] == b"looking\n"


async def test_file_that_raises_gives_no_reward_and_its_traceback_is_reported(bench: GradingBench) -> None:
    """The result file is missing: that is the test's to say, not ours to take as 0."""
    script = "def grade(session):\n    raise LookupError('no result')\n"
    with pytest.raises(GraderError, match=r"exited with 1 and returned nothing; its last lines: (?s:.*)LookupError: no result"):
        await bench.grade("python", {"file": "check.py"}, files={"tests/check.py": script})


@pytest.mark.parametrize("options", [{"file": "missing.py"}, {"file": "../task.toml"}, {}, {"file": "a", "function": "b"}])
async def test_wrong_options_are_refused(bench: GradingBench, options: dict[str, str]) -> None:
    with pytest.raises(GraderRefused):
        await bench.grade("python", options)


def part(name: str, reward: str, weight: float) -> GraderPart:
    return GraderPart(name=name, grader="fixed", options={"reward": reward}, weight=weight)


async def test_parts_are_weighed_and_kept_by_name(bench: GradingBench, allowed: Allowed) -> None:
    """Rewards of calls are weighed like rewards, evidence has the name of its part."""
    later = GraderPart(name="steps", grader="python", options={"function": f"{MODULE}:later"}, weight=1)
    script = GraderPart(name="tests", grader="harbor", weight=2)
    files = {"tests/test.sh": "#!/bin/sh\necho ran\necho 1 > /logs/verifier/reward.txt\n"}
    grade = await bench.grade("weighted", parts=(later, script, part("given", "0", 1)), files=files, allowed=allowed)

    assert grade.rewards == {"steps": 0.5, "tests": 1.0, "given": 0.0, "reward": 0.625}
    assert (grade.reward, grade.call_rewards) == (0.625, {"c1": 0.025})
    assert bench.evidence["tests/test-stdout.txt"] == b"ran\n"


async def test_part_without_a_reward_leaves_all_without_one(bench: GradingBench) -> None:
    """It must not count as 0. The part is named, and the evidence of all of them is kept."""
    with pytest.raises(GraderError, match="part 'unsure' gave no reward: no grader"):
        await bench.grade("weighted", parts=(part("given", "1", 1), GraderPart(name="unsure", grader="none")))
    files = {"tests/test.sh": "#!/bin/sh\necho silent\n"}
    with pytest.raises(GraderError, match=r"part 'harbor': tests/test.sh exited with 0"):
        await bench.grade("weighted", parts=(GraderPart(name="harbor", grader="harbor"),), files=files)

    assert bench.evidence["harbor/test-stdout.txt"] == b"silent\n"
