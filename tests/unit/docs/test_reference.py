"""The generated pages are those of the code."""

from collections.abc import Callable

import pytest
from scripts.reference import FOLDER, PAGES


@pytest.mark.parametrize(("name", "page"), PAGES.items(), ids=PAGES)
def test_committed_reference_is_current(name: str, page: Callable[[], str]) -> None:
    """After a change of an event or of a configuration: `make docs`."""
    assert (FOLDER / name).read_text() == page()


@pytest.mark.parametrize(("name", "page"), PAGES.items(), ids=PAGES)
def test_every_line_of_a_table_says_what_it_means(name: str, page: Callable[[], str]) -> None:
    """A key or field without a meaning is of no use to its reader; values of an enum may speak for themselves."""
    rows = [line for line in page().splitlines() if line.startswith("| `") and line.count(" | ") > 1]

    assert rows, name
    assert not [row for row in rows if row.endswith("|  |")]
