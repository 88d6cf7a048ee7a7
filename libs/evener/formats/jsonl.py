"""Neutral rows as JSON lines: arrays as lists; a logprob that is not there is null."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
import numpy as np

from evener.formats.neutral import NeutralRow, neutral_rows
from evener.proto.trajectories import GroupMerged


def lines(groups: Iterable[GroupMerged]) -> Iterator[bytes]:
    """Yield one line, its newline included, for each row of each group."""
    for group in groups:
        for row in neutral_rows(group):
            yield line(row)


def line(row: NeutralRow) -> bytes:
    """Return one row as a line of JSON."""
    return _encoder.encode(row) + b"\n"


def _listed(value: Any) -> Any:
    """Arrays to lists; msgspec writes NaN as null."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(type(value).__name__)


_encoder: Final = msgspec.json.Encoder(enc_hook=_listed)
