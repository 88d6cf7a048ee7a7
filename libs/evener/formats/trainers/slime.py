"""slime: `Sample` (THUDM/slime, slime/utils/types.py), in the form that `Sample.from_dict` reads.

A record is one row. Rows of a session share `rollout_id`, and slime's loss averages within it. Its default normalisation of rewards counts
every row, and takes the whole batch for one group if sessions have several rows: the function of `--custom-reward-post-process-path` has
to return `metadata["evener_advantage"]` instead.
"""

from typing import Any, Final, TypedDict

from evener.formats.neutral import NeutralRow
from evener.formats.trainable import TrainGroup, TrainSession
from evener.formats.trainer_format import TrainerFormat, trained_logprobs

ROWS_PER_GROUP: Final = 1 << 20
"""The distance of two groups' numbers: no group has so many rows or sessions."""
ONCE: Final = "shared rollout_id; --custom-reward-post-process-path that returns metadata['evener_advantage']; --use-rollout-logprobs"


class SlimeSample(TypedDict):
    """One row: T tokens, R of them response."""

    group_index: int
    index: int
    rollout_id: int
    """The session. Its rows share it."""
    prompt: str
    """Empty: rows are tokens."""
    tokens: list[int]
    """int[T]."""
    response: str
    """Empty: rows are tokens."""
    response_length: int
    """R."""
    label: None
    reward: float
    loss_mask: list[int]
    """int[R]. 1: trained."""
    weight_versions: list[str]
    """The versions of the trained tokens, each once."""
    rollout_log_probs: list[float]
    """float[R], 0.0 where not trained."""
    remove_sample: bool
    status: str
    metadata: dict[str, Any]
    """`evener_session_id`; `evener_advantage`; `evener_rows` and `evener_session_tokens`, the rows and trainable tokens of the session."""


def records(group: TrainGroup) -> list[SlimeSample]:
    """Return a record for each row."""
    return [sample_of(group, session, row, group.number * ROWS_PER_GROUP + number) for number, (session, row) in enumerate(group.rows())]


def sample_of(group: TrainGroup, session: TrainSession, row: NeutralRow, index: int) -> SlimeSample:
    """Return one row as slime and miles have it."""
    at = row["prompt_len"]
    versions = sorted(set(row["versions"][row["loss_mask"] == 1].tolist()))
    return SlimeSample(
        group_index=group.number,
        index=index,
        rollout_id=group.number * ROWS_PER_GROUP + session.index,
        prompt="",
        tokens=row["ids"].tolist(),
        response="",
        response_length=len(row["ids"]) - at,
        label=None,
        reward=session.reward,
        loss_mask=row["loss_mask"][at:].tolist(),
        weight_versions=[str(version) for version in versions],
        rollout_log_probs=trained_logprobs(row)[at:].tolist(),
        remove_sample=False,
        status="truncated" if row["truncated"] else "completed",
        metadata={
            "evener_session_id": session.session_id,
            "evener_advantage": session.advantage,
            "evener_rows": len(session.rows),
            "evener_session_tokens": session.tokens,
        },
    )


def trained(record: SlimeSample) -> int:
    """Return the number of trained tokens."""
    return sum(record["loss_mask"])


FORMAT: Final = TrainerFormat(name="slime", trainer="slime of August 2026: Sample", records=records, trained=trained, once=ONCE)
