"""verl's agent loop: `AgentLoopOutput` (verl-project/verl, verl/experimental/agent_loop/agent_loop.py).

A record is one session: the list that `AgentLoopBase.run` returns, an output for each row. verl's GRPO takes a session's score from its
last row and gives the advantage to all of them; other estimators count every row.
"""

from typing import Any, Final, TypedDict

from evener.formats.neutral import NeutralRow
from evener.formats.trainable import TrainGroup, TrainSession
from evener.formats.trainer_format import TrainerFormat, newest_version, oldest_version, trained_logprobs

ONCE: Final = "algorithm.adv_estimator=grpo, actor.loss_agg_mode=token-mean, algorithm.rollout_correction.bypass_mode=True"


class AgentLoopOutput(TypedDict):
    """One row: P prompt tokens and R response tokens."""

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    """1: trained."""
    response_logprobs: list[float]
    """0.0 where not trained."""
    reward_score: float
    num_turns: int
    """The number of calls, and of what came before each."""
    metrics: dict[str, float]
    extra_fields: dict[str, Any]
    """The versions of the trained tokens as `min_global_steps` and `max_global_steps`; `reward_extra_info`, without which several outputs
    of a session raise KeyError."""


def records(group: TrainGroup) -> list[list[AgentLoopOutput]]:
    """Return a list of outputs for each session."""
    return [[output_of(session, row) for row in session.rows] for session in group.sessions]


def output_of(session: TrainSession, row: NeutralRow) -> AgentLoopOutput:
    """Return one row."""
    at = row["prompt_len"]
    return AgentLoopOutput(
        prompt_ids=row["ids"][:at].tolist(),
        response_ids=row["ids"][at:].tolist(),
        response_mask=row["loss_mask"][at:].tolist(),
        response_logprobs=trained_logprobs(row)[at:].tolist(),
        reward_score=session.reward,
        num_turns=2 * (int(row["call_of"].max()) + 1),
        metrics={"generate_sequences": 0.0, "tool_calls": 0.0, "compute_score": 0.0, "num_preempted": -1},
        extra_fields={"min_global_steps": oldest_version(row), "max_global_steps": newest_version(row), "reward_extra_info": {}},
    )


def trained(record: list[AgentLoopOutput]) -> int:
    """Return the number of trained tokens."""
    return sum(sum(output["response_mask"]) for output in record)


FORMAT: Final = TrainerFormat(
    name="verl",
    trainer="verl 0.9 agent loop: a list of AgentLoopOutput for each session",
    records=records,
    trained=trained,
    once=ONCE,
    own_mean=True,
)
