"""What a canary proves, and how it names faults."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from evener.engines.port import TokenScores
from evener.proto.fleet import Canary, CanaryPrompt
from evener.trainer_bridge.canary import CanaryFailed, Proof, prove

BEFORE = (-1.0, -2.5, -0.1, -4.0, -3.0, -0.7, -2.2, -5.1, -1.9)
AFTER = (-1.2, -2.4, -0.3, -4.4, -2.7, -0.5, -2.6, -5.0, -1.6)


def scores(logprobs: Sequence[float], version: int = 2) -> list[TokenScores]:
    return [TokenScores(logprobs=np.asarray([math.nan, *logprobs]), version=version)]


def canary(logprobs: Sequence[float] | None = None, tolerance: float = 1e-3) -> Canary:
    ids = tuple(range(10, 11 + len(AFTER)))
    return Canary(prompts=(CanaryPrompt(ids=ids, logprobs=None if logprobs is None else (None, *logprobs)),), tolerance=tolerance)


def proven(
    told: Canary,
    after: Sequence[TokenScores],
    *,
    before: Sequence[TokenScores] | None = None,
    differs: bool | None = True,
    tied: bool = False,
) -> Proof:
    return prove("e1", told, before or scores(BEFORE, 1), after, version=2, differs=differs, tied=tied)


def test_change_and_gap_are_the_largest_differences() -> None:
    """Against before, and against the trainer."""
    near = [logprob + 4e-4 for logprob in AFTER]
    proof = proven(canary(near), scores(AFTER))
    assert proof.change == pytest.approx(0.4)
    assert proof.gap == pytest.approx(4e-4)
    assert proven(canary(), scores(AFTER)).gap is None


def test_a_fault_in_any_prompt_is_found() -> None:
    """The second is looked at as the first is: what it scores, and which version it carries."""
    told = canary(AFTER)
    told = Canary(prompts=told.prompts * 2, tolerance=told.tolerance)
    before, good, other = scores(BEFORE, 1) * 2, scores(AFTER), scores((*AFTER[:4], -2.8, *AFTER[5:]))
    assert proven(told, good + good, before=before).gap == 0
    with pytest.raises(CanaryFailed, match=r"canary prompt 1, token 5 \(id 15\): expected the trainer's logprob -2.70000"):
        proven(told, good + other, before=before)
    with pytest.raises(CanaryFailed, match="wrong version label: expected 2, and saw 1"):
        proven(told, good + scores(AFTER, version=1), before=before)


def test_one_prompt_that_changed_is_enough() -> None:
    """An update may leave some contexts as they were."""
    told = Canary(prompts=canary().prompts * 2)
    assert proven(told, scores(BEFORE) + scores(AFTER), before=scores(BEFORE, 1) * 2).change == pytest.approx(0.4)


def test_a_small_update_is_a_change_and_rounding_is_none() -> None:
    """A step of a low learning rate moves logprobs by 1e-4; float32 sums in another order differ by less than 2e-6."""
    assert proven(canary(), scores([logprob + 1e-4 for logprob in BEFORE])).change == pytest.approx(1e-4)
    assert proven(canary(), scores([logprob + 1e-5 for logprob in BEFORE])).change == pytest.approx(1e-5)
    with pytest.raises(CanaryFailed, match="stale weights"):
        proven(canary(), scores([logprob + 1e-6 for logprob in BEFORE]))


def test_unchanged_logprobs_are_stale_weights_unless_the_weights_are_equal() -> None:
    """A step that moved nothing may be published. Where nobody knows, they have to change, and the error says what equal ones are."""
    with pytest.raises(CanaryFailed, match=r"engine e1 has stale weights.*for all 9 canary tokens\. The engines"):
        proven(canary(), scores(BEFORE))
    with pytest.raises(CanaryFailed, match=r"engine e1 has stale weights.*are version 0, and need not be published"):
        proven(canary(), scores(BEFORE), differs=None)
    assert proven(canary(), scores(BEFORE), differs=False).change == 0


@pytest.mark.parametrize(
    ("trainer", "tied", "says"),
    [
        ((*AFTER[:4], -2.8, *AFTER[5:]), False, r"token 5 \(id 15\): expected the trainer's logprob -2.80000, and saw -2.70000\."),
        ((*AFTER[1:], -1.0), False, "those of the next id"),
        ((-1.0, *AFTER[:-1]), False, "those of the previous id"),
        ([logprob / 0.7 + 0.2 for logprob in AFTER], False, "at a temperature of about 0.7"),
        ([logprob - 0.4 * (-1) ** place for place, logprob in enumerate(AFTER)], True, "ties its embeddings"),
    ],
    ids=["one token", "next", "previous", "temperature", "tied"],
)
def test_a_trainer_that_differs_is_told_where_and_how(trainer: Sequence[float], tied: bool, says: str) -> None:  # noqa: FBT001
    with pytest.raises(CanaryFailed, match=says):
        proven(canary(trainer), scores(AFTER), tied=tied)


def test_a_wrong_label_is_reported_before_anything_else() -> None:
    with pytest.raises(CanaryFailed, match="expected 2, and saw 1 in its answers"):
        proven(canary(), scores(BEFORE, version=1))


def test_weights_of_nan_are_no_weights() -> None:
    with pytest.raises(CanaryFailed, match="token 1: expected a logprob, and saw nan"):
        proven(canary(), scores([math.nan] * len(AFTER)))


@pytest.mark.parametrize("logprobs", [(None, -1.0), (None, None, -1.0), (None, -1.0, None)])
def test_a_canary_without_a_logprob_for_each_id_is_none(logprobs: tuple[float | None, ...]) -> None:
    with pytest.raises(ValueError, match="as many logprobs"):
        CanaryPrompt(ids=(1, 2, 3), logprobs=logprobs)
