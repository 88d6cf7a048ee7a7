"""NeMo-RL: `DatumSpec` with a message log (NVIDIA-NeMo/RL, nemo_rl/data/interfaces.py; nemo_rl/algorithms/grpo.py).

A record is one session. A message trains if it is the assistant's and has `generation_logprobs`; what is not trained is the user's. Context
after the last trained token is left out. The message log has no versions.
"""

from typing import Any, Final, TypedDict

from evener.formats.neutral import NeutralRow
from evener.formats.trainable import TrainGroup, TrainSession
from evener.formats.trainer_format import TrainerFormat, int64s, trained_logprobs, trained_spans


class DatumSpec(TypedDict):
    """One session of one row."""

    message_log: list[dict[str, Any]]
    """`role`, `content` (empty: rows are tokens), `token_ids` int64, and `generation_logprobs` float32 if trained."""
    length: int
    """The number of tokens of the message log."""
    extra_env_info: dict[str, Any]
    loss_multiplier: float
    idx: int
    """The group."""
    task_name: str
    total_reward: float
    truncated: bool


def records(group: TrainGroup) -> list[DatumSpec]:
    """Return a record for each session."""
    return [_datum(group, session, row) for session, row in group.rows()]


def _datum(group: TrainGroup, session: TrainSession, row: NeutralRow) -> DatumSpec:
    messages = _messages(row)
    return DatumSpec(
        message_log=messages,
        length=sum(len(message["token_ids"]) for message in messages),
        extra_env_info={"evener_session_id": session.session_id, "rewards": session.rewards},
        loss_multiplier=1.0,
        idx=group.number,
        task_name=group.task_id,
        total_reward=session.reward,
        truncated=row["truncated"],
    )


def _messages(row: NeutralRow) -> list[dict[str, Any]]:
    ids, logprobs = int64s(row["ids"]), trained_logprobs(row)
    found, at = list[dict[str, Any]](), 0
    for start, end in trained_spans(row):
        found.append({"role": "user", "content": "", "token_ids": ids[at:start]})
        found.append({"role": "assistant", "content": "", "token_ids": ids[start:end], "generation_logprobs": logprobs[start:end]})
        at = end
    return found


def trained(record: DatumSpec) -> int:
    """Return the number of trained tokens."""
    return sum(len(message.get("generation_logprobs", ())) for message in record["message_log"])


FORMAT: Final = TrainerFormat(
    name="nemo_rl",
    trainer="NeMo-RL of August 2026: DatumSpec with a message log",
    records=records,
    trained=trained,
    once="one row a session",
    several_rows=False,
    own_mean=True,
)
