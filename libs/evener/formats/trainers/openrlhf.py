"""OpenRLHF: what `AgentExecutorBase.execute` returns (OpenRLHF/OpenRLHF, openrlhf/trainer/ppo_utils/samples_generator.py).

A record is one session. The trainer shifts mask and logprobs by one itself. It computes advantages from exactly N sessions of a prompt, and
knows no versions.
"""

from typing import Final, TypedDict

from evener.formats.neutral import NeutralRow
from evener.formats.trainable import TrainGroup, TrainSession
from evener.formats.trainer_format import TrainerFormat, trained_logprobs, trained_spans


class ExecuteOutput(TypedDict):
    """One session of one row: T tokens."""

    prompt: str
    """The task: the trainer only logs it."""
    label: str
    images: None
    reward: float
    scores: float
    observation_tokens: list[int]
    """int[T]: the whole row."""
    action_ranges: list[tuple[int, int]]
    """Where trained tokens begin and end (exclusive)."""
    rollout_log_probs: list[float]
    """float[T], 0.0 where not trained."""
    truncated: bool
    extra_logs: dict[str, float]


def records(group: TrainGroup) -> list[ExecuteOutput]:
    """Return a record for each session."""
    return [_output(group, session, row) for session, row in group.rows()]


def _output(group: TrainGroup, session: TrainSession, row: NeutralRow) -> ExecuteOutput:
    return ExecuteOutput(
        prompt=group.task_id,
        label="",
        images=None,
        reward=session.reward,
        scores=session.reward,
        observation_tokens=row["ids"].tolist(),
        action_ranges=trained_spans(row),
        rollout_log_probs=trained_logprobs(row).tolist(),
        truncated=row["truncated"],
        extra_logs={},
    )


def trained(record: ExecuteOutput) -> int:
    """Return the number of trained tokens."""
    return sum(end - max(start, 1) for start, end in record["action_ranges"])


FORMAT: Final = TrainerFormat(
    name="openrlhf",
    trainer="OpenRLHF 0.11.2: what an AgentExecutor returns",
    records=records,
    trained=trained,
    once="one row a session; rollout.n_samples_per_prompt = N; algo.advantage.is_correction_level other than off",
    several_rows=False,
    own_mean=True,
    whole_groups=True,
)
