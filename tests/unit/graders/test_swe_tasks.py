"""A repository task in the shape of SWE-bench, from its row to its reward: real git, real pytest, real sandboxes."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.grading import GradingBench, open_bench
from tests.support.swe_rows import FIXED, TESTS, rebench, repository, written

from evener.graders.port import Grade
from evener.graders.validation import Validator
from evener.sandboxes.local import open_local
from evener.tasks.directory import find
from evener.tasks.imports.port import ImportOptions
from evener.tasks.imports.registry import importer_for
from evener.tasks.imports.writing import import_into


@pytest.fixture
def task(tmp_path: Path) -> Path:
    clones = tmp_path / "clones"
    base = repository(clones)
    source = written(tmp_path / "rows.jsonl", rebench(clones, base))
    options = ImportOptions(repositories=clones)
    list(import_into(tmp_path / "out", importer_for("swe-rebench"), str(source), options))
    return find(tmp_path / "out")[0]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[GradingBench]:
    async with open_bench(tmp_path) as opened:
        yield opened


def files_of(task: Path) -> dict[str, str]:
    return {path.relative_to(task).as_posix(): path.read_text() for path in task.rglob("*") if path.is_file()}


async def graded(bench: GradingBench, task: Path, changed: dict[str, str]) -> Grade:
    files = await asyncio.to_thread(files_of, task)
    return await bench.grade(
        "test_log", {"expected": "expected.json"}, files=files, changed={f"testbed/{name}": text for name, text in changed.items()}
    )


async def test_golden_patch_solves_it_and_nothing_does_not(task: Path, tmp_path: Path) -> None:
    """Twice each: the row is sound."""
    async with open_local(tmp_path / "validation") as sandboxes:
        verdict = await Validator({"local": sandboxes}).validate(task, "local")

    assert verdict.faults == (), verdict.detail
    assert [[trial.reward for trial in trials] for trials in (verdict.oracle, verdict.no_op)] == [[1.0, 1.0], [0.0, 0.0]]


async def test_fix_of_the_agents_own_is_worth_1(bench: GradingBench, task: Path) -> None:
    grade = await graded(bench, task, {"calc.py": FIXED.replace("a + b", "sum((a, b))")})

    assert grade.rewards == {"reward": 1.0, "fail_to_pass": 1.0, "pass_to_pass": 1.0}


async def test_fix_that_breaks_something_else_is_worth_0(bench: GradingBench, task: Path) -> None:
    grade = await graded(bench, task, {"calc.py": FIXED.replace("2 * a", "3 * a")})

    assert grade.rewards == {"reward": 0.0, "fail_to_pass": 1.0, "pass_to_pass": 0.0}


async def test_tests_that_the_agent_rewrote_are_put_back(bench: GradingBench, task: Path) -> None:
    """Emptied or made to pass, or in the way of the patch: the file of the base commit is patched."""
    cheated = TESTS.replace("== 4", "> 0") + "\n\ndef test_add():\n    pass\n"
    grade = await graded(bench, task, {"tests/test_calc.py": cheated})

    assert grade.rewards == {"reward": 0.0, "fail_to_pass": 0.0, "pass_to_pass": 1.0}


@pytest.mark.parametrize("name", ["conftest.py", "tests/conftest.py", "pytest.ini"])
async def test_runner_that_the_agent_configured_is_put_back(bench: GradingBench, task: Path, name: str) -> None:
    """A hook that runs no test and calls it passed, wherever it lies; options that collect and run nothing."""
    hook = "import pytest\n@pytest.hookimpl(tryfirst=True)\ndef pytest_pyfunc_call(pyfuncitem):\n    return True\n"
    grade = await graded(bench, task, {name: "[pytest]\naddopts = --collect-only\n" if name.endswith(".ini") else hook})

    assert grade.rewards == {"reward": 0.0, "fail_to_pass": 0.0, "pass_to_pass": 1.0}
