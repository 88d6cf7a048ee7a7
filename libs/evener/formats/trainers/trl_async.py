"""TRL's AsyncGRPOTrainer: `RolloutSample` (huggingface/trl, trl/experimental/async_grpo/async_rollout_worker.py).

A record is one row. It carries its session's advantage, and the trainer's only loss is the mean over all tokens of the batch, so a session
of several rows is one session of as many tokens.
"""

from typing import Any, Final, TypedDict

import numpy as np
from numpy.typing import NDArray

from evener.formats.neutral import NeutralRow
from evener.formats.trainable import TrainGroup, TrainSession
from evener.formats.trainer_format import TrainerFormat, int64s, oldest_version, trained_logprobs


class RolloutSample(TypedDict):
    """One row: T tokens, three arrays of length T."""

    prompt: list[dict[str, str]]
    """Empty: the trainer only logs it."""
    completion: list[dict[str, str]]
    """Empty: the trainer only logs it."""
    input_ids: NDArray[np.int64]
    completion_mask: NDArray[np.int64]
    """1: trained."""
    old_log_probs: NDArray[np.float32]
    """0.0 where not trained."""
    advantage: float
    model_version: int
    """The oldest version of a trained token: the trainer drops rows by it (`max_staleness`)."""
    group_id: int
    metrics: dict[str, float]
    enqueued_at: float
    """When the group was merged, in Unix seconds."""


def records(group: TrainGroup) -> list[RolloutSample]:
    """Return a record for each row."""
    return [_sample(group, session, row) for session, row in group.rows()]


def _sample(group: TrainGroup, session: TrainSession, row: NeutralRow) -> RolloutSample:
    return RolloutSample(
        prompt=[],
        completion=[],
        input_ids=int64s(row["ids"]),
        completion_mask=int64s(row["loss_mask"]),
        old_log_probs=trained_logprobs(row),
        advantage=session.advantage,
        model_version=oldest_version(row),
        group_id=group.number,
        metrics={"reward": session.reward} | {f"rewards/{name}": value for name, value in session.rewards.items()},
        enqueued_at=group.merged_at,
    )


def trained(record: RolloutSample) -> int:
    """Return the number of trained tokens. The first token is nobody's prediction: the loss leaves it out."""
    mask: NDArray[Any] = record["completion_mask"]
    return int(mask[1:].sum())


FORMAT: Final = TrainerFormat(
    name="trl_async",
    trainer="TRL 1.16 AsyncGRPOTrainer: RolloutSample",
    records=records,
    trained=trained,
    once="none: advantages are given, and its loss is the mean over tokens",
)
