"""Checks that an engine samples with the weights that it was given, by scoring fixed ids before and after the update. Pure.

The checks find weights that did not change (stale), weights that changed only in part (a tied output matrix), the version label of another
version, and a trainer that scores at another temperature or whose logprobs belong to other ids.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from evener.engines.port import TokenScores
from evener.proto.errors import EvenerError
from evener.proto.fleet import Canary, CanaryPrompt

UNCHANGED: Final = 2e-6
"""The largest difference between two float32 logprobs of the same weights. Any useful update changes some logprobs by more."""
TEMPERATURE_FIT: Final = 0.9
"""The share of the variance that a line must explain before its slope is called a temperature."""
TEMPERATURE_APART: Final = 0.05
FEWEST: Final = 8
"""The fewest logprobs that a line is fitted to."""
AMONG_ENGINES: Final = 0.25
"""The largest difference between engines with the same weights, used if the trainer gave no logprobs. Logprobs of bfloat16 logits come in
steps of an eighth."""


class CanaryFailed(EvenerError):
    """The engines sample with the previous version again. Mend what the message names, and publish a higher version."""


class Proof(Struct, frozen=True):
    """The result of the canary."""

    change: float | None
    """The largest change of a logprob by the update. None: there was nothing to compare with."""
    gap: float | None
    """The largest difference to the trainer's logprobs. None: the trainer gave none."""


def prove(
    engine_id: str,
    canary: Canary,
    before: Sequence[TokenScores] | None,
    after: Sequence[TokenScores],
    *,
    version: int,
    differs: bool | None,
    tied: bool = False,
    joining: bool = False,
) -> Proof:
    """Return the proof that an engine has this version. Raises CanaryFailed with the engine, what was expected and what was seen.

    `differs`: whether the weights differ from those before. None: unknown, so they must. `joining`: the version is published already, and
    the canary's logprobs may be those of other engines (`as_scored`).
    """
    _check_version(engine_id, after, version)
    _check_finite(engine_id, after)
    change = None if before is None else max(_gap(one.logprobs, other.logprobs) for one, other in zip(before, after, strict=True))
    if differs is not False and change is not None and change <= UNCHANGED:
        raise CanaryFailed(_stale(engine_id, after, differs=differs))
    gaps = [_against(engine_id, canary, number, scores, tied=tied, joining=joining) for number, scores in enumerate(after)]
    return Proof(change, max((gap for gap in gaps if gap is not None), default=None))


def compared(canary: Canary) -> bool:
    """Return whether the trainer gave logprobs to compare with."""
    return any(prompt.logprobs is not None for prompt in canary.prompts)


def as_scored(canary: Canary, scores: Sequence[TokenScores]) -> Canary:
    """Return a canary with the logprobs of an engine, to compare engines that join later with it."""
    told = [(None, *map(float, one.logprobs[1:])) for one in scores]
    prompts = tuple(CanaryPrompt(ids=prompt.ids, logprobs=logprobs) for prompt, logprobs in zip(canary.prompts, told, strict=True))
    return Canary(prompts=prompts, tolerance=AMONG_ENGINES)


def same(before: Sequence[TokenScores], after: Sequence[TokenScores], tolerance: float) -> bool:
    """Return whether an engine scores the canary as it did before."""
    return max(_gap(one.logprobs, other.logprobs) for one, other in zip(before, after, strict=True)) <= tolerance


def _stale(engine_id: str, after: Sequence[TokenScores], *, differs: bool | None) -> str:
    told = sum(len(scores.logprobs) - 1 for scores in after)
    stale = f"engine {engine_id} has stale weights: expected other logprobs than before, and saw the same for all {told} canary tokens"
    return stale if differs else f"{stale}; weights that equal those it was started with are version 0, and need not be published"


def _check_version(engine_id: str, after: Sequence[TokenScores], version: int) -> None:
    wrong = next((scores.version for scores in after if scores.version != version), None)
    if wrong is not None:
        msg = f"engine {engine_id} has a wrong version label: expected {version}, and saw {wrong} in its answers"
        raise CanaryFailed(msg)


def _check_finite(engine_id: str, after: Sequence[TokenScores]) -> None:
    for number, scores in enumerate(after):
        if not np.isfinite(scores.logprobs[1:]).all():
            position = 1 + int(np.argmin(np.isfinite(scores.logprobs[1:])))
            msg = f"engine {engine_id}, canary prompt {number}, token {position}: expected a logprob, and saw {scores.logprobs[position]}"
            raise CanaryFailed(msg)


def _against(engine_id: str, canary: Canary, number: int, scores: TokenScores, *, tied: bool, joining: bool) -> float | None:
    expected = _expected(canary.prompts[number])
    if expected is None:
        return None
    gaps = np.abs(scores.logprobs[1:] - expected[1:])
    position = 1 + int(np.argmax(gaps))
    gap = float(gaps[position - 1])
    if gap <= canary.tolerance:
        return gap
    whose = "the version's" if joining else "the trainer's"
    cause = "" if joining else _cause(expected, scores.logprobs, canary.tolerance, tied=tied)
    msg = (
        f"engine {engine_id}, canary prompt {number}, token {position} (id {canary.prompts[number].ids[position]}): expected {whose} "
        f"logprob {expected[position]:.5f}, and saw {scores.logprobs[position]:.5f}{cause}"
    )
    raise CanaryFailed(msg)


def _expected(prompt: CanaryPrompt) -> NDArray[np.float64] | None:
    if prompt.logprobs is None:
        return None
    return np.asarray([math.nan if logprob is None else logprob for logprob in prompt.logprobs], np.float64)


def _cause(expected: NDArray[np.float64], seen: NDArray[np.float64], tolerance: float, *, tied: bool) -> str:
    """Return the likely cause of the difference, for the error message. Empty: no known cause fits."""
    expected, seen = expected[1:], seen[1:]
    for shift, which in ((1, "next"), (-1, "previous")):
        one, other = (expected[:-1], seen[1:]) if shift == 1 else (expected[1:], seen[:-1])
        if len(one) and np.max(np.abs(one - other)) <= tolerance:
            return f": off by one, the trainer's logprobs are those of the {which} id"
    if tied:
        return ": the folder ties its embeddings, and vLLM may keep the old output matrix; save them untied (own lm_head.weight)"
    temperature = _temperature(expected, seen)
    return "" if temperature is None else f": the trainer seems to score at a temperature of about {temperature:.1f}"


def _temperature(expected: NDArray[np.float64], seen: NDArray[np.float64]) -> float | None:
    """Return the temperature at which the engine's distribution would be the trainer's. None: no line fits.

    At temperature T a logprob is the raw logprob / T plus a normalising term that varies little between contexts: a line of slope 1 / T.
    """
    if len(seen) < FEWEST or np.ptp(seen) == 0:
        return None
    slope, level = np.polyfit(seen, expected, 1)
    left = float(np.sum((expected - (slope * seen + level)) ** 2))
    whole = float(np.sum((expected - expected.mean()) ** 2))
    fits = slope > 0 and whole > 0 and 1 - left / whole >= TEMPERATURE_FIT and abs(slope - 1) > TEMPERATURE_APART
    return float(1 / slope) if fits else None


def _gap(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    return float(np.max(np.abs(one[1:] - other[1:])))
