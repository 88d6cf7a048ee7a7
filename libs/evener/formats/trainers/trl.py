"""TRL's GRPOTrainer: the dictionary that a `rollout_func` returns (huggingface/trl, trl/trainer/grpo_trainer.py, `_generate`).

A record is one group. Its prompts stand repeated, as the trainer passes them. The trainer computes advantages by itself from what the
reward function returns: let it return `evener_reward`, which arrives there as a keyword argument. The trainer knows no versions.
"""

from typing import Final, TypedDict

from evener.formats.trainable import TrainGroup
from evener.formats.trainer_format import TrainerFormat, oldest_version, trained_logprobs


class RolloutFuncOutput(TypedDict):
    """N completions of one prompt. Each list has an item for each session; R tokens from the first sampled one on."""

    prompt_ids: list[list[int]]
    completion_ids: list[list[int]]
    logprobs: list[list[float]]
    """float[R], 0.0 where not trained."""
    env_mask: list[list[int]]
    """int[R]. 1: trained."""
    evener_reward: list[float]
    evener_session_id: list[str]
    evener_version: list[int]
    """The oldest version of a trained token."""


def records(group: TrainGroup) -> list[RolloutFuncOutput]:
    """Return the one record of a group."""
    rows = list(group.rows())
    return [
        RolloutFuncOutput(
            prompt_ids=[row["ids"][: row["prompt_len"]].tolist() for _, row in rows],
            completion_ids=[row["ids"][row["prompt_len"] :].tolist() for _, row in rows],
            logprobs=[trained_logprobs(row)[row["prompt_len"] :].tolist() for _, row in rows],
            env_mask=[row["loss_mask"][row["prompt_len"] :].tolist() for _, row in rows],
            evener_reward=[session.reward for session, _ in rows],
            evener_session_id=[session.session_id for session, _ in rows],
            evener_version=[oldest_version(row) for _, row in rows],
        )
    ]


def trained(record: RolloutFuncOutput) -> int:
    """Return the number of trained tokens."""
    return sum(map(sum, record["env_mask"]))


FORMAT: Final = TrainerFormat(
    name="trl",
    trainer="TRL 1.16 GRPOTrainer: the dictionary of a rollout_func",
    records=records,
    trained=trained,
    once="one row a session; num_generations = N",
    several_rows=False,
    own_mean=True,
    whole_groups=True,
)
