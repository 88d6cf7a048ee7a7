"""Tinker: `Datum` as it is on the wire (SDK 0.38, tinker/types/datum.py), for the loss `importance_sampling` or `ppo`.

A record is one row of T tokens, with arrays of length T - 1: inputs without the last token, targets without the first. As in the cookbook,
`mask` says what is trained: take it out before sending. Tinker knows no versions.
"""

from typing import Any, Final, TypedDict

import numpy as np
from numpy.typing import NDArray

from evener.formats.neutral import NeutralRow
from evener.formats.trainable import TrainGroup, TrainSession
from evener.formats.trainer_format import TrainerFormat, int64s, trained_logprobs


class TensorData(TypedDict):
    """An array of length T - 1."""

    data: NDArray[Any]
    dtype: str
    """`int64` or `float32`."""
    shape: list[int]


class Datum(TypedDict):
    """One row."""

    model_input: dict[str, list[dict[str, Any]]]
    """`chunks`: one chunk of type `encoded_text` with the tokens but the last."""
    loss_fn_inputs: dict[str, TensorData]
    """`target_tokens` int64, `logprobs` and `advantages` float32 (0.0 where not trained), `mask` float32 (1.0: trained)."""


def records(group: TrainGroup) -> list[Datum]:
    """Return a record for each row."""
    return [_datum(session, row) for session, row in group.rows()]


def _datum(session: TrainSession, row: NeutralRow) -> Datum:
    mask = (row["loss_mask"][1:] == 1).astype(np.float32)
    return Datum(
        model_input={"chunks": [{"type": "encoded_text", "tokens": row["ids"][:-1].tolist()}]},
        loss_fn_inputs={
            "target_tokens": _tensor(int64s(row["ids"][1:])),
            "logprobs": _tensor(trained_logprobs(row)[1:]),
            "advantages": _tensor(mask * np.float32(session.advantage)),
            "mask": _tensor(mask),
        },
    )


def _tensor(values: NDArray[Any]) -> TensorData:
    return TensorData(data=values, dtype=str(values.dtype), shape=list(values.shape))


def trained(record: Datum) -> int:
    """Return the number of trained tokens."""
    return int(record["loss_fn_inputs"]["mask"]["data"].sum())


FORMAT: Final = TrainerFormat(
    name="tinker",
    trainer="Tinker 0.38: Datum",
    records=records,
    trained=trained,
    once="none: advantages are given, and its losses are sums over tokens (a server that averages each datum counts rows)",
)
