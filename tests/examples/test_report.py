"""The figures and the page of a run."""

import re
from xml.etree import ElementTree as ET

from bars import bars
from figures import figures, gap, gap_max, in_order
from report import only_picture, page, through_pi
from tests.examples.told import RIGHT, run


def test_figures_are_what_was_told() -> None:
    told = figures(run())

    shares = {"before": RIGHT["before"], "after": RIGHT["after-pi"], "control": RIGHT["control"]}
    assert told["tasks"]["copy"] == {**shares, "steps": 2, "minutes": 0.08, "gap_max": 2e-6}
    assert told["second"] == {**shares, "after": RIGHT["after-script"], "harness": "script", "steps": 2, "gap_max": 2e-6}
    assert told["cross"]["trained in script"] == {"evaluated in pi": 0.75, "evaluated in script": 0.75}
    assert told["spanning_two_versions"] == 60
    assert told["spanning_in_training"] == 120
    assert told["seconds_per_step"] == {"rollout": 2.0, "train": 0.25, "sync": 0.125}
    assert (told["sessions_run"], told["sessions_in_groups"], told["sessions_delivered"]) == (32, 32, 32)
    assert (told["tokens_trained"], told["tokens_checked"]) == (160, 160)
    assert told["trained_once_and_in_order"]


def test_the_gap_of_a_step_is_the_larger_one_of_canary_and_sampled_tokens() -> None:
    """Neither hides the other; not compared is no gap of 0."""
    assert gap({"gap": 1e-6, "gap_sampled": 2e-3}) == 2e-3
    assert gap({"gap": 3e-3, "gap_sampled": 1e-6}) == 3e-3
    assert gap({"gap": 3e-6, "gap_sampled": None}) == 3e-6
    assert gap({"gap": None, "gap_sampled": 1e-6}) is None


def test_the_largest_gap_is_known_only_where_every_update_was_compared() -> None:
    """A step without an update has nothing to compare."""
    compared, skipped = {"tokens": 5, "gap": 1e-6, "gap_sampled": None}, {"tokens": 0, "gap": None}
    assert gap_max([compared, skipped]) == 1e-6
    assert gap_max([compared, compared | {"gap": None}]) is None
    assert gap_max([skipped]) is None


def test_answers_of_steps_without_an_update_are_not_counted_as_trained() -> None:
    said = run()
    skipped = said["arms"]["spans"][1]
    said["arms"]["spans"][1] = {key: skipped[key] for key in ("step", "groups", "seconds")} | {"tokens": 0, "gap": None}
    told = figures(said)

    assert told["spanning_two_versions"] == 30
    assert (told["tokens_trained"], told["tokens_checked"], told["updates"], told["steps"]) == (140, 140, 5, 6)


def test_a_group_that_is_trained_twice_never_or_too_late_is_seen() -> None:
    said = run()
    steps = said["arms"]["spans"]
    first, second = steps[0]["groups"], steps[1]["groups"]
    assert in_order(said)
    for groups, later in (([*first, first[0]], second), (first[1:], second), (second, first)):
        steps[0]["groups"], steps[1]["groups"] = groups, later
        assert not in_order(said)


def test_the_page_brings_everything_with_it() -> None:
    """It loads nothing, its pictures are whole, and it names the missed conditions."""
    said = run()
    said["arms"]["through-pi"][0] |= {"tokens": 0, "gap": None}  # nothing could be learnt
    said["checked"]["faults"] = 1
    told = figures(said)
    written = page(said, told, bars(said, told))

    assert not re.search(r"(src|href)=|url\(|<script", written)
    assert written.count("<svg") == 5
    assert "met    every group trained once" in written
    assert "MISSED no fault found" in written
    assert ET.fromstring(only_picture(through_pi(said, told))).tag.endswith("svg")  # noqa: S314 - it is our own


def test_the_control_is_drawn_where_it_was_evaluated() -> None:
    """A point at the end, and no line from a start that it never had."""
    said = run()
    picture = through_pi(said, figures(said))

    assert "write: held out, control at the end" in picture
    assert picture.count("<polyline") == 4
