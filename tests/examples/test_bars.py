"""What `make learn` must show: each thing that can go wrong makes it fail, and only its own line."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bars import bars
from figures import figures
from learn import leave
from tests.examples.told import in_log, run

Said = dict[str, Any]


def missed(said: Said) -> list[str]:
    return [bar.name for bar in bars(said, figures(said)) if not bar.met]


def test_a_run_in_which_everything_holds_is_reported_with_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "learn").mkdir()

    assert leave(tmp_path / "learn", run())
    assert "MISSED" not in capsys.readouterr().out
    assert all(json.loads((tmp_path / "learn.json").read_text())["bars"].values())


def test_a_missed_bar_fails_the_run_and_leaves_its_figures_all_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = run()
    said["checked"]["faults"] = 1
    (tmp_path / "learn").mkdir()

    assert not leave(tmp_path / "learn", said)
    assert "MISSED no fault found by the independent checker" in capsys.readouterr().out
    assert json.loads((tmp_path / "learn.json").read_text())["faults_found_by_the_checker"] == 1
    assert (tmp_path / "learn" / "report.html").exists()


@pytest.mark.parametrize(
    ("name", "bases"),
    [
        ("after-pi pi write", ("write, through Pi: 0.3 above before", "write, through Pi: 0.3 above control")),
        ("after-pi pi copy", ("copy, through Pi: 0.3 above before", "copy, through Pi: 0.3 above control")),
        ("after-script script write", ("write, through script: 0.3 above before", "write, through script: 0.3 above control")),
    ],
)
def test_a_gain_that_is_too_small_is_missed(name: str, bases: tuple[str, str]) -> None:
    """Over the start, and over the control, each by itself."""
    said = run()
    said["held_out"][name]["right"] = 0.25 + 0.3
    assert missed(said) == [bases[1]]
    said["held_out"][name]["right"] = 0.25 + 0.29
    assert missed(said) == list(bases)


def gap_in_canary(said: Said) -> None:
    said["arms"]["spans"][1]["gap"] = 1.1e-3


def gap_in_what_was_sampled(said: Said) -> None:
    said["arms"]["through-script"][0]["gap_sampled"] = 1.1e-3


def not_compared(said: Said) -> None:
    said["arms"]["through-pi"][1]["gap"] = None


@pytest.mark.parametrize("change", [gap_in_canary, gap_in_what_was_sampled, not_compared])
def test_a_gap_at_any_step_of_any_arm_is_missed(change: Callable[[Said], None]) -> None:
    said = run()
    change(said)

    assert missed(said) == ["logprob gap of engine and trainer at every step, at most 0.001"]


@pytest.mark.parametrize("found", [{"gap_max": 1.1e-3}, {"gap_max": math.nan}, {"tokens": 191}])
def test_a_token_that_its_version_does_not_explain_or_that_was_excluded_is_missed(found: Said) -> None:
    said = run()
    said["scored"] |= found

    assert missed(said) == ["every sampled token's logprob is that of the weights its version names, to 0.001"]


def test_evaluations_of_too_few_sessions_are_missed() -> None:
    said = run()
    said["held_out"]["control pi copy"]["sessions"] = 60

    assert missed(said) == ["at least 64 sessions in each evaluation"]


@pytest.mark.parametrize("found", [{"faults": 1}, {"exit": 1}, {"trajectories": 31}, {"trajectories": -1, "faults": -1, "exit": 1}])
def test_a_checker_that_found_something_or_did_not_read_everything_is_missed(found: Said) -> None:
    said = run()
    said["checked"] |= found

    assert missed(said) == ["no fault found by the independent checker, in all sessions of all groups"]


def test_tokens_that_were_trained_and_not_checked_are_missed() -> None:
    said = run()
    said["arms"]["through-pi"][0]["tokens"] += 1

    assert missed(said) == ["every trained token was checked"]


def never_in_a_group(said: Said) -> None:
    said["checked"]["ran"]["spans"]["sessions"].append("spans.write.9.0.0")


def in_two_groups(said: Said) -> None:
    group = said["checked"]["groups"][0]
    group["sessions"][0] = group["sessions"][1]


def of_a_failed_group_and_delivered(said: Said) -> None:
    said["checked"]["ran"]["spans"]["of_failed_groups"] = said["checked"]["ran"]["spans"]["sessions"][:2]


@pytest.mark.parametrize("change", [never_in_a_group, in_two_groups, of_a_failed_group_and_delivered])
def test_sessions_that_ran_and_are_not_in_one_group_are_missed(change: Callable[[Said], None]) -> None:
    """By id: as many of them would not do."""
    said = run()
    change(said)

    assert missed(said) == ["sessions in the groups = sessions run"]


def test_held_out_sessions_that_reach_the_trainers_are_missed() -> None:
    """An evaluation that was submitted for training by mistake."""
    said = run()
    group = {"group_id": "before-pi-write.0", "partition": 0, "offset": 999}
    said["checked"]["groups"].append(in_log("before-pi-write", group))
    said["checked"]["trajectories"] += 2
    said["scored"]["tokens"] += 12

    assert missed(said) == ["sessions in the groups = sessions run"]


def test_sessions_of_failed_groups_are_told_and_not_missed() -> None:
    said = run()
    lost = ["spans.write.9.0.0", "spans.write.9.0.1"]
    said["checked"]["ran"]["spans"]["sessions"] += lost
    said["checked"]["ran"]["spans"]["of_failed_groups"] += lost

    assert missed(said) == []
    assert any("34 run, 2 of failed groups" in bar.value for bar in bars(said, figures(said)))


def test_a_group_out_of_order_is_missed() -> None:
    said = run()
    said["arms"]["spans"].reverse()

    assert missed(said) == ["every group trained once, in the order of the log"]


def test_a_partition_that_was_never_trained_is_missed() -> None:
    said = run()
    group = {"group_id": "spans.write.8.0", "partition": 7, "offset": 0}
    said["checked"]["groups"].append(in_log("spans", group))
    said["checked"]["ran"]["spans"]["sessions"] += said["checked"]["groups"][-1]["sessions"]
    said["checked"]["trajectories"] += 2
    said["scored"]["tokens"] += 12

    assert missed(said) == ["every group trained once, in the order of the log"]


def test_too_few_answers_across_updates_are_missed() -> None:
    said = run()
    for group in said["checked"]["groups"]:
        group["spanning"] = 12

    assert missed(said) == ["at least 50 trained answers that span two versions"]


@pytest.mark.parametrize(("ungraded", "wanted"), [(3, []), (4, ["at most 5% of an evaluation's sessions without a grade"])])
def test_an_evaluation_without_grades_is_missed(ungraded: int, wanted: list[str]) -> None:
    said = run()
    said["held_out"]["control pi copy"]["ungraded"] = ungraded

    assert missed(said) == wanted
