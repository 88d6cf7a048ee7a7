"""SkyRL: `GeneratorOutput` (NovaSky-AI/SkyRL, skyrl/train/generators/base.py).

A record is one group. The rows of a session stand one after the other, and `is_last_step` marks its last: with step-wise trajectories its
reward alone counts, and its advantage goes to all of them. SkyRL knows no versions.
"""

from typing import Any, Final, TypedDict

from evener.formats.trainable import TrainGroup
from evener.formats.trainer_format import TrainerFormat, trained_logprobs


class GeneratorOutput(TypedDict):
    """Each list has an item for each row: P prompt tokens, R response tokens."""

    prompt_token_ids: list[list[int]]
    response_ids: list[list[int]]
    rewards: list[float]
    loss_masks: list[list[int]]
    """int[R]. 1: trained."""
    stop_reasons: list[str]
    rollout_metrics: dict[str, Any] | None
    rollout_logprobs: list[list[float]]
    """float[R], 0.0 where not trained."""
    trajectory_ids: list[dict[str, Any]]
    """The arguments of a `TrajectoryID`: `instance_id`, the group, and `repetition_id`, the session."""
    is_last_step: list[bool]


def records(group: TrainGroup) -> list[GeneratorOutput]:
    """Return the one record of a group."""
    rows = [(session, row, row is session.rows[-1]) for session, row in group.rows()]
    return [
        GeneratorOutput(
            prompt_token_ids=[row["ids"][: row["prompt_len"]].tolist() for _, row, _ in rows],
            response_ids=[row["ids"][row["prompt_len"] :].tolist() for _, row, _ in rows],
            rewards=[session.reward for session, _, _ in rows],
            loss_masks=[row["loss_mask"][row["prompt_len"] :].tolist() for _, row, _ in rows],
            stop_reasons=["length" if row["truncated"] else "stop" for _, row, _ in rows],
            rollout_metrics=None,
            rollout_logprobs=[trained_logprobs(row)[row["prompt_len"] :].tolist() for _, row, _ in rows],
            trajectory_ids=[{"instance_id": group.group_id, "repetition_id": session.index} for session, _, _ in rows],
            is_last_step=[last for _, _, last in rows],
        )
    ]


def trained(record: GeneratorOutput) -> int:
    """Return the number of trained tokens."""
    return sum(map(sum, record["loss_masks"]))


FORMAT: Final = TrainerFormat(
    name="skyrl",
    trainer="SkyRL 0.4: GeneratorOutput",
    records=records,
    trained=trained,
    once="generator.step_wise_trajectories=true, generator.merge_stepwise_output=false, trainer.algorithm.advantage_estimator=grpo",
    own_mean=True,
)
