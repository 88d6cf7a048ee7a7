"""Imports through the packages of those who publish tasks: `make test-sources` installs them."""

from pathlib import Path
from typing import Any

import pytest
from tests.support.swe_rows import rebench, repository, written

from evener.graders.log_parsers import parser_named, parser_names
from evener.tasks.directory import Task
from evener.tasks.imports.port import ImportOptions, SourceUnreadable
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
    assert parser(DJANGO) == {
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
