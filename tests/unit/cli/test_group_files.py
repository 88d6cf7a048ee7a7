"""The rows that an export writes, and its message about those that it omits."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from tests.support.trainer_groups import several_rows, single_rows

from evener.cli.group_files import Exported, NotWritten, check_folder, write_groups


def exported(**given: Any) -> Exported:
    """Return what was written: nothing, where nothing else is said."""
    counts: dict[str, Any] = {"groups": 0, "rows": 0, "without_rows": 0, "failed": 0, "other_purposes": {}} | given
    return Exported(file="rows.jsonl", **counts)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "no such group has ended yet; the file is empty"),
        ({"failed": 2}, "all groups failed; the file is empty"),
        ({"groups": 3, "rows": 4, "without_rows": 2}, "2 of 3 groups have no token that can be trained, and so no row"),
        ({"groups": 1, "without_rows": 1}, "none of the groups has a token that can be trained; the file is empty"),
        (
            {"groups": 1, "rows": 4, "other_purposes": {"eval": 3, "collect": 1}},
            "groups of other purposes are not exported (1 collect, 3 eval): use --purpose collect or --purpose all",
        ),
        ({"groups": 2, "refused": {"a": "Why."}}, "group a is not in the file: Why."),
    ],
)
def test_an_export_that_is_less_than_one_may_expect_says_so(given: dict[str, Any], told: str) -> None:
    """An empty file is never a surprise."""
    assert list(exported(**given).warnings()) == [told]


def test_folder_that_is_missing_is_not_made(tmp_path: Path) -> None:
    """It is a misspelt one."""
    with pytest.raises(NotWritten, match=f"there is no folder {tmp_path}/nosuch"):
        check_folder(tmp_path / "nosuch" / "rows.parquet")

    assert list(tmp_path.iterdir()) == []


def test_refused_groups_are_described_three_times_and_counted() -> None:
    """A thousand warnings hide what they say."""
    warnings = list(exported(groups=9, rows=4, refused={f"g{number}": "Why." for number in range(5)}).warnings())

    assert warnings == [
        *(f"group g{number} is not in the file: Why." for number in range(3)),
        "5 of 9 groups were refused; the result names all",
    ]


def test_groups_are_written_as_a_trainer_takes_them(tmp_path: Path) -> None:
    """The group that it would train wrongly is named, and the others are written."""
    taken, refused = structs.replace(single_rows(), group_id="one"), structs.replace(several_rows(), group_id="three")
    written = asyncio.run(write_groups(tmp_path / "rows.jsonl", "trl", [taken, refused]))

    (record,) = map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())
    assert record["evener_reward"] == [1.0, 0.0, 0.5, 0.25]
    assert written.rows == 4
    assert [(name, why.partition(".")[0]) for name, why in written.refused.items()] == [("three", "session task")]
    assert "has 3 rows" in written.refused["three"]
