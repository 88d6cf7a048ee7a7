"""Imports through the packages of those who publish tasks: `make test-sources` installs them."""

import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.grading import open_bench
from tests.support.swe_rows import rebench, repository, written

from evener.graders.log_parsers import parser_named, parser_names
from evener.graders.port import Allowed, GraderRefused
from evener.tasks.directory import Task
from evener.tasks.imports.port import ImportOptions, RefusedRow, SourceUnreadable
from evener.tasks.imports.registry import format_of_source, importer_for
from evener.tasks.imports.writing import import_into

pytestmark = [pytest.mark.sources, pytest.mark.filterwarnings("default")]  # what those packages warn of is theirs to mend

DJANGO = """\
test_add (calc.tests.Adding) ... ok
test_sub (calc.tests.Adding) ... FAIL
test_many (calc.tests.Adding) ... skipped 'no'
"""


def tasks_of(source: str, out: Path, **options: Any) -> list[Task]:
    found = import_into(out, importer_for(format_of_source(source, options.get("split"))), source, ImportOptions(**options))
    return [one for one in found if isinstance(one, Task)]


def test_data_set_of_the_hub_is_read_by_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder is a data set too: its files are its splits."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    (tmp_path / "set").mkdir()
    written(tmp_path / "set/train.jsonl", {"question": "1+1?", "answer": "2"})
    written(tmp_path / "set/test.jsonl", {"question": "2+2?", "answer": "so #### 4"}, {"question": "3+3?", "answer": "#### 6"})
    source = f"hf:{tmp_path / 'set'}"

    assert [task.grader.options["expected"] for task in tasks_of(source, tmp_path / "a")] == ["4", "6"]
    assert [task.grader.options["expected"] for task in tasks_of(source, tmp_path / "b", split="train")] == ["2"]
    with pytest.raises(SourceUnreadable, match="has the splits train, test, not 'dev'"):
        tasks_of(source, tmp_path / "c", split="dev")


def test_log_parsers_of_swebench_are_there_by_their_names() -> None:
    parser = parser_named("parse_log_django")

    assert {"pytest", "parse_log_django", "parse_log_jest", "parse_log_cargo"} <= set(parser_names())
    assert parser is not None
    assert parser(DJANGO.splitlines()) == {
        "test_add (calc.tests.Adding)": True,
        "test_sub (calc.tests.Adding)": False,
        "test_many (calc.tests.Adding)": False,
    }
    assert parser_named("parse_log_nobody") is None


def test_row_that_names_a_parser_of_swebench_is_imported(tmp_path: Path) -> None:
    clones = tmp_path / "clones"
    base = repository(clones)
    config = {"test_cmd": "npx jest", "log_parser": "parse_log_jest"}
    source = written(tmp_path / "rows.jsonl", {**rebench(clones, base), "install_config": config})
    (task,) = tasks_of(str(source), tmp_path / "out")

    assert '"parser":"parse_log_jest"' in (task.path / "tests/expected.json").read_text()


TASKSET = """
import verifiers.v1 as vf

class SumData(vf.TaskData):
    answer: int

class SumTask(vf.Task[SumData]):
    @vf.reward(weight=2.0)
    async def right(self, trace) -> float:
        return float(trace.last_reply == str(self.data.answer))

    @vf.reward
    async def short(self, trace) -> float:
        return float(len(trace.last_reply) < 5)

class LookingTask(SumTask):
    @vf.reward
    async def looks(self, trace, runtime) -> float:
        return 1.0

class Sums(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self):
        yield SumTask(SumData(prompt="1+1?", system_prompt="Be short.", answer=2))
        yield LookingTask(SumData(prompt="2+2?", answer=4))

__all__ = ["Sums"]
"""


@pytest.fixture
def taskset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "sums_of_a_test.py").write_text(TASKSET)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sums_of_a_test", raising=False)
    return "sums_of_a_test"


def test_tasks_of_a_taskset_of_verifiers_are_imported_unless_they_need_its_runtime(tmp_path: Path, taskset: str) -> None:
    found = list(import_into(tmp_path / "out", importer_for("verifiers"), f"verifiers:{taskset}", ImportOptions()))
    task, refused = found

    assert isinstance(task, Task)
    assert task.instruction == "Be short.\n\n1+1?"
    assert (task.grader.name, task.grader.options["taskset"], task.grader.options["index"]) == ("verifiers", taskset, "0")
    assert refused == RefusedRow(name=f"{taskset}-00001", reason="its reward 'looks' looks at verifiers' own runtime")
    with pytest.raises(SourceUnreadable, match="no_such_taskset"):
        list(import_into(tmp_path / "out", importer_for("verifiers"), "verifiers:no_such_taskset", ImportOptions()))


async def test_answer_is_graded_by_the_rewards_of_its_taskset(tmp_path: Path, taskset: str) -> None:
    """With the weights that verifiers gives them; never by a module that the operator does not allow, or a task that is another now."""
    allowed, options = Allowed(modules=(taskset,)), {"taskset": taskset, "index": "0"}
    async with open_bench(tmp_path) as bench:
        right = await bench.grade("verifiers", options, answer="2", allowed=allowed)
        wrong = await bench.grade("verifiers", options, answer="3", allowed=allowed)
        none = await bench.grade("verifiers", options, answer="a long story", allowed=allowed)
        for wanted, permitted in ((options, Allowed()), ({**options, "index": "2"}, allowed), ({**options, "key": "x"}, allowed)):
            with pytest.raises(GraderRefused):
                await bench.grade("verifiers", wanted, allowed=permitted)

    assert (right.reward, right.rewards) == (3.0, {"right": 1.0, "short": 1.0, "reward": 3.0})
    assert (wrong.reward, none.reward) == (1.0, 0.0)
