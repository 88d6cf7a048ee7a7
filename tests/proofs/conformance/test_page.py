"""The conformance suite publishes its figures, except figures of other code, of failed cells, of cells that were not run."""

from pathlib import Path

import msgspec
import pytest
from msgspec import structs
from proofs import figures
from proofs.conformance import page
from proofs.conformance.cases import CASES
from proofs.conformance.code import CODE, digest
from proofs.conformance.setups import SETUPS
from proofs.conformance.suite import Run

from evener.harnesses.registry import harness


@pytest.fixture(autouse=True)
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the figures, and of a page."""
    (tmp_path / "page.md").write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter")
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(page, "OUTPUTS", tmp_path)
    monkeypatch.setattr(figures, "OUTPUTS", tmp_path)
    return tmp_path


def run(set_up: str = "codex", case: str = "linear", *, passed: bool = True, rows: int = 1, delivered: float = 1.0) -> Run:
    setup = SETUPS[set_up]
    return Run(
        set_up=set_up,
        harness=setup.harness,
        dialect=setup.dialect,
        version=harness(setup.harness).version,
        case=case,
        passed=passed,
        rows=rows,
        delivered=delivered,
        fed=1.0,
        at=1.0,
        code=CODE,
    )


def every(*, slow: bool) -> list[Run]:
    return [run(*cell) for cell in page.cells() if slow or cell[1] != "six_minutes"]


def kept(*earlier: Run) -> list[str]:
    """Return the cases that the figures show after a run of another set-up, where these were there."""
    page.publish(earlier, ())
    page.publish([run("pi chat")], ())
    return [each.case for each in page.earlier() if each.set_up == "codex"]


def test_cells_of_the_same_code_and_cli_are_kept() -> None:
    """A part of the suite adds to what is there."""
    assert kept(run(case="linear"), run(case="live")) == ["linear", "live"]


def test_cells_of_another_code_are_dropped() -> None:
    """They say nothing of today's."""
    assert kept(run(), structs.replace(run(case="live"), code="0123456789ab")) == ["linear"]


def test_cells_of_another_version_of_the_cli_are_dropped() -> None:
    """Versions move weekly."""
    assert kept(run(), structs.replace(run(case="live"), version="0.1.0")) == ["linear"]


def test_any_change_of_the_product_makes_it_another_code(tmp_path: Path) -> None:
    """Content, names, and what is new; not what Python compiled."""
    for folder in ("proto", "libs", "services"):
        (tmp_path / folder).mkdir()
    (tmp_path / "libs" / "a.py").write_text("1")
    seen = [digest(tmp_path)]
    (tmp_path / "libs" / "a.py").write_text("2")
    seen.append(digest(tmp_path))
    (tmp_path / "libs" / "a.py").rename(tmp_path / "libs" / "b.py")
    seen.append(digest(tmp_path))
    (tmp_path / "services" / "empty.py").touch()
    seen.append(digest(tmp_path))

    assert len(set(seen)) == 4
    (tmp_path / "libs" / "__pycache__").mkdir()
    (tmp_path / "libs" / "__pycache__" / "b.pyc").write_text("compiled")
    assert digest(tmp_path) == seen[-1]


def test_a_cell_that_was_asked_for_and_is_not_there_fails_the_command(outputs: Path) -> None:
    """Also where nothing else failed."""
    made = every(slow=True)

    assert page.publish(made, page.cells()) == 0
    (outputs / "conformance.json").unlink()
    assert page.publish(made[1:], page.cells()) == 1


def test_a_cell_that_failed_fails_the_command() -> None:
    """If it was asked for."""
    assert page.publish([run(passed=False)], [("codex", "linear")]) == 1
    assert page.publish([run("pi chat")], [("pi chat", "linear")]) == 0


def test_six_minutes_that_were_not_asked_for_are_named_and_do_not_count(capsys: pytest.CaptureFixture[str]) -> None:
    """The page shows twelve of thirteen."""
    made = every(slow=False)
    asked = [cell for cell in page.cells() if cell[1] != "six_minutes"]

    assert page.publish(made, asked) == 0
    assert "codex, six_minutes: not run" in capsys.readouterr().out
    row = next(line for line in page.PAGE.read_text().splitlines() if line.startswith("| codex "))
    assert f"| {len(CASES) - 1} of {len(CASES)} |" in row
    assert "six_minutes: not run" in row


def test_the_page_changes_only_when_all_cells_were_run_on_one_code() -> None:
    """And says which."""
    page.publish([run()], ())
    assert "old" in page.PAGE.read_text()

    page.publish(every(slow=False), ())
    assert "old" not in page.PAGE.read_text()
    assert CODE in page.PAGE.read_text()
    assert page.PAGE.read_text().startswith("before")
    assert page.PAGE.read_text().endswith("after")


def test_a_cell_that_a_set_up_cannot_have_is_there_with_its_reason() -> None:
    """No dash without one."""
    page.publish(every(slow=True), ())
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in page.PAGE.read_text().splitlines() if line.startswith("| ")}

    for name, setup in SETUPS.items():
        assert all(f"{why}" in rows[name] for why in setup.lacks.values())


def test_failed_runs_are_not_averaged_into_linear_sessions() -> None:
    """A failed run of no rows would hide one of two."""
    made = [run(passed=False, rows=0, delivered=0.0), run(case="live", rows=2)]

    assert page.linear_of("codex", made)["rows_per_session"] == 2
    assert page.linear_of("codex", made)["delivered"] == 1.0
    assert page.linear_of("codex", made[:1]) == {}


def test_linear_figures_are_by_harness_the_worst_of_its_set_ups(outputs: Path) -> None:
    """Those whose history is only appended to; all set-ups stand beside."""
    page.publish(
        [run("qwen_code"), run("qwen_code anthropic", rows=2, delivered=0.5), run("openclaw responses"), run("openclaw chat", rows=7)], ()
    )
    written = msgspec.json.decode((outputs / "conformance.json").read_bytes())

    assert written["linear"] == {
        "qwen_code": {"rows_per_session": 2, "delivered": 0.5, "fed": 1.0},
        "openclaw": {"rows_per_session": 1, "delivered": 1.0, "fed": 1.0},
    }
    assert list(written["setups"]) == ["qwen_code", "qwen_code anthropic", "openclaw responses", "openclaw chat"]
    assert written["code"] == CODE


def test_more_rows_than_the_bar_fail_the_command() -> None:
    """1.2 per linear session."""
    assert page.publish([run(rows=2)], [("codex", "linear")]) == 1


def test_every_set_up_says_what_each_of_its_cells_must_show() -> None:
    """None is compared with nothing."""
    for name, case in page.cells():
        assert SETUPS[name].wanted(case).tree
