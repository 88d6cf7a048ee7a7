"""pass@k and its intervals."""

import itertools
import random
import statistics
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evener.formats.evaluation_picture import picture
from evener.formats.pass_at_k import TaskScores, estimate, evaluation, pass_at, wilson


@given(st.integers(1, 7), st.data())
def test_pass_at_k_is_the_share_of_draws_with_a_solution(sessions: int, data: st.DataObject) -> None:
    """Of all ways to draw k of the sessions."""
    solved, k = data.draw(st.integers(0, sessions)), data.draw(st.integers(1, sessions))
    draws = list(itertools.combinations([True] * solved + [False] * (sessions - solved), k))

    assert pass_at(sessions, solved, k) == pytest.approx(sum(map(any, draws)) / len(draws))


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8)), min_size=1, max_size=30), st.integers(1, 8))
def test_interval_holds_the_share_and_stays_between_0_and_1(tasks: list[tuple[int, int]], k: int) -> None:
    found = estimate([(sessions, min(solved, sessions)) for sessions, solved in tasks], k)

    if found is None:
        assert all(sessions < k for sessions, _ in tasks)
    else:
        assert 0.0 <= found.low <= found.value <= found.high <= 1.0
        assert found.high > found.low


@pytest.mark.parametrize("concentration", [0.5, 2.0, 50.0])
@pytest.mark.parametrize("k", [1, 4])
def test_intervals_hold_the_truth_about_as_often_as_they_say(concentration: float, k: int) -> None:
    """Of kinds of tasks that are alike, and of kinds of which some are easy and some hopeless; 95 % is promised."""
    draw = random.Random(7)  # noqa: S311 - a simulation
    mean = 0.3
    chances = [draw.betavariate(mean * concentration, (1 - mean) * concentration) for _ in range(200_000)]
    truth = statistics.fmean(1 - (1 - chance) ** k for chance in chances)
    held = 0
    for _ in range(600):
        tasks = [(8, sum(draw.random() < chance for _ in range(8))) for chance in draw.sample(chances, 30)]
        found = estimate(tasks, k)
        assert found is not None
        held += found.low <= truth <= found.high

    assert 0.91 <= held / 600 <= 0.995


def test_all_solved_is_not_certain() -> None:
    """Three tasks, twelve sessions, all solved: the interval is that of three trials, because sessions of a task are alike."""
    found = estimate([(4, 4)] * 3, 1)

    assert found is not None
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(wilson(1.0, 3)[0])


def test_sessions_without_a_reward_count_nowhere() -> None:
    """Nor does a task that has too few others for a k."""
    scores = [TaskScores(task="a", rewards=(1.0, 0.0, None)), TaskScores(task="b", rewards=(None, None, None))]
    scores.append(TaskScores(task="c", rewards=(1.0, 1.0, 0.5)))
    found = evaluation("pi", "set", scores, (3, 1))

    assert (found.tasks, found.sessions, found.graded) == (3, 9, 5)
    assert found.pass_at[1].value == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert found.pass_at[1].tasks == 2
    assert (found.pass_at[3].value, found.pass_at[3].tasks) == (1.0, 1)
    assert found.mean_reward == pytest.approx((0.5 + 2.5 / 3) / 2)
    assert evaluation("pi", "set", scores, (1,), solved_at=0.5).pass_at[1].value == 0.75
    assert evaluation("pi", "set", scores[1:2], (1,)).pass_at == {}


def test_picture_is_well_formed_and_tells_all_figures() -> None:
    """Also for names that look like markup, and for an arm without a grade."""
    scores = [TaskScores(task="a", rewards=(1.0, 0.0)), TaskScores(task="b", rewards=(0.0, 0.0))]
    arms = [evaluation("<b>&pi", "set", scores, (1, 2)), evaluation("none", "x" * 99, [TaskScores(task="a", rewards=(None,))], (1,))]
    drawn = ET.fromstring(picture("run <1>", arms))  # noqa: S314 - our own

    assert drawn.get("aria-label", "").startswith("<b>&pi on set: pass@1 25.0% (")
    titles = [element.text for element in drawn.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == 2
    assert titles[1] is not None
    assert titles[1].startswith("pass@2 50.0%")
