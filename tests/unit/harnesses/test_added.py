"""Harnesses of other packages, found by their entry points."""

import sys
from pathlib import Path

import pytest

from evener.harnesses.port import HarnessError
from evener.harnesses.registry import harness, names, own_names

MODULE = """
from evener.harnesses.script import ScriptHarness
class Mine(ScriptHarness):
    name = {name!r}
HARNESS = Mine()
NOTHING = object()
"""


def install(site: Path, package: str, points: str, name: str = "mine") -> None:
    """Lay out an installed package, as pip does."""
    (site / f"{package}.py").write_text(MODULE.format(name=name))
    info = site / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[evener.harnesses]\n{points}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in ("added_harness", "other_harness"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return tmp_path


def test_an_installed_package_adds_a_harness(site: Path) -> None:
    """It is listed and found like one of Evener's own."""
    install(site, "added_harness", "mine = added_harness:HARNESS")

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
        ("mine = added_harness:NOTHING", "is no harness: it has no name, summary, .*exit_meaning"),
        ("yours = added_harness:HARNESS", "calls itself 'mine': its entry point must have that name"),
    ],
)
def test_what_is_no_harness_is_told_when_it_is_wanted(site: Path, points: str, told: str) -> None:
    """The others are as they were."""
    install(site, "added_harness", points)
    wanted = points.partition(" ")[0]
    with pytest.raises(HarnessError, match=told):
        harness(wanted)
    assert harness("script").name == "script"


def test_two_harnesses_of_one_name_are_refused(site: Path) -> None:
    """Which of them would run, nobody knows."""
    install(site, "added_harness", "pi = added_harness:HARNESS")
    with pytest.raises(HarnessError, match="harness 'pi' of package added_harness has the name of one of Evener itself"):
        names()
