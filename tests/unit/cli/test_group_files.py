"""The rows that an export writes, and its message about those that it omits."""

from pathlib import Path

import pytest

from evener.cli.group_files import Exported, NotWritten, check_folder


def exported(**given: int | dict[str, int]) -> Exported:
    """Return what was written: nothing, where nothing else is said."""
    counts = {"groups": 0, "rows": 0, "without_rows": 0, "failed": 0, "other_purposes": {}} | given
    return Exported(file="rows.jsonl", **counts)  # type: ignore[arg-type] # of mixed types


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
    ],
)
def test_an_export_that_is_less_than_one_may_expect_says_so(given: dict[str, int | dict[str, int]], told: str) -> None:
    """An empty file is never a surprise."""
    assert list(exported(**given).warnings()) == [told]


def test_folder_that_is_missing_is_not_made(tmp_path: Path) -> None:
    """It is a misspelt one."""
    with pytest.raises(NotWritten, match=f"there is no folder {tmp_path}/nosuch"):
        check_folder(tmp_path / "nosuch" / "rows.parquet")

    assert list(tmp_path.iterdir()) == []
