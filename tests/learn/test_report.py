"""The figures and the page of a run."""

import re
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from figures import figures, in_order
from report import only_picture, page, through_pi


def step(arm: str, number: int) -> dict[str, Any]:
    """What the trainer told of a step: two groups of each kind."""
    kinds = ("write", "copy") if arm == "through-pi" else ("write",)
    groups = [
        {"group_id": f"{arm}.{kind}.{number}.{each}", "partition": each, "offset": 2 * number + at, "rewards": [0.0, 1.0]}
        for at, kind in enumerate(kinds)
        for each in range(2)
    ]
    seconds = {"rollout": 2.0, "train": 0.25, "sync": 0.125}
    told = {"step": number, "groups": groups, "seconds": seconds, "spanning": 3, "lag_mean": 0.5, "lag_max": 1}
    return told | {"gap": 1e-6 * number, "gap_sampled": None if number == 2 else 2e-6}


@pytest.fixture
def said() -> dict[str, Any]:
    """A run of two steps in each arm."""
    arms = {name: [step(name, 1), step(name, 2)] for name in ("through-pi", "through-script", "spans")}
    looked: tuple[str, ...] = (
        "before pi write",
        "before pi copy",
        "before script write",
        "after-pi pi write",
        "after-pi pi copy",
        "after-pi script write",
    )
    looked += ("control pi write", "control pi copy", "control script write", "after-script script write", "after-script pi write")
    log = [[name, group["partition"], group["offset"]] for name, steps in arms.items() for one in steps for group in one["groups"]]
    checked = {"sessions": 32, "delivered": 32, "groups": log, "faults": 0, "exit": 0}
    held_out = {name: number / 16 for number, name in enumerate(looked)}
    return {"held_out": held_out, "arms": arms, "checked": checked, "sessions_run": 32, "seconds": 60.0, "start_seconds": 6.0}


def test_figures_are_what_was_told(said: dict[str, Any]) -> None:
    told = figures(said)

    assert told["tasks"]["copy"] == {"before": 1 / 16, "after": 4 / 16, "control": 7 / 16, "steps": 2, "minutes": 0.08, "gap_max": 2e-6}
    assert told["second"] == {"harness": "script", "before": 2 / 16, "after": 9 / 16, "control": 8 / 16, "gap_max": 2e-6}
    assert told["cross"]["trained in pi"] == {"evaluated in pi": 3 / 16, "evaluated in script": 5 / 16}
    assert told["spanning_two_versions"] == 6
    assert told["seconds_per_step"] == {"rollout": 2.0, "train": 0.25, "sync": 0.125}
    assert told["trained_once_and_in_order"]


def test_a_group_that_is_trained_twice_never_or_too_late_is_seen(said: dict[str, Any]) -> None:
    steps = said["arms"]["spans"]
    first, second = steps[0]["groups"], steps[1]["groups"]
    for groups, later in (([*first, first[0]], second), (first[1:], second), (second, first)):
        steps[0]["groups"], steps[1]["groups"] = groups, later
        assert not in_order(said)


def test_the_page_brings_everything_with_it(said: dict[str, Any]) -> None:
    """It loads nothing, and its pictures are whole."""
    written = page(said, figures(said))

    assert not re.search(r"(src|href)=|url\(|<script", written)
    assert written.count("<svg") == 5
    assert ET.fromstring(only_picture(through_pi(said, figures(said)))).tag.endswith("svg")  # noqa: S314 - it is our own
