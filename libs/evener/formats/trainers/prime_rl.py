"""prime-rl: `TrainingSample` (PrimeIntellect-ai/prime-rl, src/prime_rl/transports/rollouts/types.py, version 0.8.0).

A record is one row. The trainer's struct is an array, so the order of the fields is the format: it is that of the named version, and later
versions append and replace fields. `prepare_batch` makes of it what is on the wire.
"""

from typing import Final

from msgspec import Struct

from evener.formats.neutral import NeutralRow
from evener.formats.trainable import TrainGroup, TrainSession
from evener.formats.trainer_format import TrainerFormat, trained_logprobs


class TrainingSample(Struct, array_like=True, gc=False, omit_defaults=True):
    """One row: T tokens, lists of length T."""

    token_ids: list[int]
    mask: list[bool]
    """True: trained."""
    logprobs: list[float]
    """0.0 where not trained."""
    temperatures: list[float]
    """Of every token, context too: that of a token scales the logits which predict the next one."""
    env_name: str
    """The task."""
    ref_logprobs: None = None
    mm_kwargs: None = None
    routed_experts: None = None
    mm_token_type_ids: None = None
    rl_weights: None = None
    ce_weights: None = None
    ref_kl_weights: None = None
    advantages: list[float] | None = None
    """The session's advantage where trained, 0.0 elsewhere."""


def records(group: TrainGroup) -> list[TrainingSample]:
    """Return a record for each row."""
    return [_sample(group, session, row) for session, row in group.rows()]


def _sample(group: TrainGroup, session: TrainSession, row: NeutralRow) -> TrainingSample:
    mask = row["loss_mask"] == 1
    return TrainingSample(
        token_ids=row["ids"].tolist(),
        mask=mask.tolist(),
        logprobs=trained_logprobs(row).tolist(),
        temperatures=[row["temperature"]] * len(mask),
        env_name=group.task_id,
        advantages=[session.advantage if one else 0.0 for one in mask],
    )


def trained(record: TrainingSample) -> int:
    """Return the number of trained tokens. The first token is nobody's prediction."""
    return sum(record.mask[1:])


FORMAT: Final = TrainerFormat(
    name="prime_rl",
    trainer="prime-rl 0.8.0: TrainingSample",
    records=records,
    trained=trained,
    once="none: advantages are given, and its loss is the mean over tokens",
)
