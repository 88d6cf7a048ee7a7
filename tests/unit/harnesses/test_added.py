"""Harnesses of other packages, found by their entry points."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.added_harness import install, packages_in

from evener.harnesses.port import HarnessError
from evener.harnesses.registry import harness, names, own_names

MINE = """
from evener.harnesses.script import ScriptHarness
class Mine(ScriptHarness):
    name = "mine"
HARNESS = Mine()
NOTHING = object()
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages."""
    for module in ("added_harness", "other_harness"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    with packages_in(tmp_path):
        yield tmp_path


def test_an_installed_package_adds_a_harness(site: Path) -> None:
    """It is listed and found like one of Evener's own."""
    install(site, "added_harness", "mine = added_harness:HARNESS", MINE)

    assert names() == tuple(sorted((*own_names(), "mine")))
    assert harness("mine").name == "mine"
    with pytest.raises(HarnessError, match=r"unknown harness 'mne' \(known: .*mine.*\); did you mean 'mine'\?"):
        harness("mne")


@pytest.mark.parametrize(
    ("points", "told"),
    [
        (
            "mine = added_harness:MISSING",
            r"'mine' of package added_harness \(added_harness:MISSING\) cannot be loaded: Attr",
        ),
        ("mine = added_harness:NOTHING", "is not a harness: it has no name, summary, .*exit_meaning"),
        ("yours = added_harness:HARNESS", "calls itself 'mine': its entry point must have that name"),
    ],
)
def test_what_is_no_harness_is_told_when_it_is_wanted(site: Path, points: str, told: str) -> None:
    """The others are as they were."""
    install(site, "added_harness", points, MINE)
    wanted = points.partition(" ")[0]
    with pytest.raises(HarnessError, match=told):
        harness(wanted)
    assert harness("script").name == "script"


def test_two_harnesses_of_one_name_are_refused(site: Path) -> None:
    """Which of them would run, nobody knows."""
    install(site, "added_harness", "pi = added_harness:HARNESS", MINE)
    with pytest.raises(HarnessError, match="harness 'pi' of package added_harness has the name of one of Evener itself"):
        names()


def test_packages_are_looked_at_once(site: Path) -> None:
    """Sixteen recordings that start together stopped the loop for 114 ms, each with two looks at every package."""
    for _ in range(2):
        with pytest.raises(HarnessError, match="unknown harness 'mine'"):
            harness("mine")
    install(site, "added_harness", "mine = added_harness:HARNESS", MINE)

    assert "mine" not in names()
