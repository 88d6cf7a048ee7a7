"""`evener tasks` as a user calls it."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.planted_tasks import EXPECTED, plant
from tests.support.swe_rows import written

from evener.cli.__main__ import call


def lines(capsys: pytest.CaptureFixture[str]) -> list[Any]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_imported_rows_are_listed_and_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From a file of rows to tasks that were tried. The row that is none is told, and the exit code says so."""
    source = written(tmp_path / "rows.jsonl", {"question": "2+2?", "answer": "4"}, {"question": "?"})

    assert call(["tasks", "import", str(source), "--out", str(tmp_path / "out")]) == 1
    out = capsys.readouterr()
    assert json.loads(out.out) == {
        "folder": str(tmp_path / "out"),
        "format": "rows",
        "tasks": 1,
        "with_oracle": 1,
        "needs": {},
        "refused": 1,
    }
    assert "rows-00001 is not imported: it has none of the columns answer" in out.err

    assert call(["tasks", "list", str(tmp_path / "out")]) == 0
    (listed,) = lines(capsys)
    assert (listed["task"], listed["grader"], listed["oracle"]) == ("rows-00000", "answer", True)
    assert call(["tasks", "validate", str(tmp_path / "out"), "--trust-local"]) == 0
    *_, summary = lines(capsys)
    assert summary == {"tasks": 1, "sound": 1, "without_oracle": 0, "faults": {}}


def test_planted_faults_are_told_one_line_a_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = plant(tmp_path / "tasks")

    assert call(["tasks", "validate", str(folder), "--trust-local"]) == 1
    *verdicts, summary = lines(capsys)
    assert {Path(one["path"]).name: set(one["faults"]) for one in verdicts} == {name: set(faults) for name, faults in EXPECTED.items()}
    assert (summary["tasks"], summary["sound"]) == (len(EXPECTED), sum(not faults for faults in EXPECTED.values()))


def test_solutions_run_with_the_users_rights_only_if_trusted(tmp_path: Path) -> None:
    """They are programs of strangers."""
    folder = plant(tmp_path / "tasks")

    with pytest.raises(Exception, match="or give --trust-local if you trust these tasks"):
        call(["tasks", "validate", str(folder)])
    assert not list(folder.glob("*.count"))


def test_unreadable_task_is_listed_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["tasks", "list", str(plant(tmp_path / "tasks"))]) == 1

    bad = next(one for one in lines(capsys) if one["task"] == "bad-manifest")
    assert "$.agent.timeout_sec" in bad["trouble"]
