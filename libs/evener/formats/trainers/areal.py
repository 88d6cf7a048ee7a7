"""AReaL: what `RolloutWorkflow.arun_episode` returns for a row (inclusionAI/AReaL, areal/experimental/openai/types.py, `to_tensor_dict`).

A record is one row, with a batch dimension of 1. It ends with its last trained token: AReaL puts the reward there, and would lose it on one
that is not trained. The reward is our advantage, because AReaL's own normalisation takes consecutive rows for a group.
"""

from typing import Any, Final, TypedDict

import numpy as np
from numpy.typing import NDArray

from evener.formats.neutral import NeutralRow
from evener.formats.trainable import TrainGroup, TrainSession
from evener.formats.trainer_format import TrainerFormat, int64s, trained_logprobs, trained_spans


class AReaLTrajectory(TypedDict):
    """One row up to its last trained token: T tokens, arrays [1, T], and `rewards` [1]."""

    input_ids: NDArray[np.int64]
    loss_mask: NDArray[np.int64]
    """1: trained."""
    logprobs: NDArray[np.float32]
    """0.0 where not trained."""
    versions: NDArray[np.int64]
    """-1 where not trained."""
    attention_mask: NDArray[np.bool_]
    rewards: NDArray[np.float32]
    """The session's advantage."""


def records(group: TrainGroup) -> list[AReaLTrajectory]:
    """Return a record for each row."""
    return [_trajectory(session, row) for session, row in group.rows()]


def _trajectory(session: TrainSession, row: NeutralRow) -> AReaLTrajectory:
    end = trained_spans(row)[-1][1]

    def one(values: NDArray[Any]) -> NDArray[Any]:
        return values[None, :end]

    return AReaLTrajectory(
        input_ids=one(int64s(row["ids"])),
        loss_mask=one(int64s(row["loss_mask"])),
        logprobs=one(trained_logprobs(row)),
        versions=one(np.where(row["loss_mask"] == 1, int64s(row["versions"]), -1)),
        attention_mask=np.ones((1, end), np.bool_),
        rewards=np.array([session.advantage], np.float32),
    )


def trained(record: AReaLTrajectory) -> int:
    """Return the number of trained tokens. The first token is nobody's prediction."""
    return int(record["loss_mask"][:, 1:].sum())


FORMAT: Final = TrainerFormat(
    name="areal",
    trainer="AReaL 1.0.4: the trajectory of a RolloutWorkflow",
    records=records,
    trained=trained,
    once="actor: reward_norm and adv_norm null, reward_bias 0, reward_scaling 1, discount 1, gae_lambda 1, mask_no_eos_with_zero false",
)
