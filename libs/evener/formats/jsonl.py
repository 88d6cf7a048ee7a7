"""Writes neutral rows as JSON lines: arrays become lists, and a missing logprob is null."""

from collections.abc import Iterable, Iterator
from typing import IO, Any, Final

import msgspec
import numpy as np

from evener.formats.neutral import NeutralRow, neutral_rows
from evener.proto.trajectories import GroupMerged


def write(groups: Iterable[GroupMerged], sink: IO[bytes]) -> int:
    """Write all rows of the groups; return their number."""
    count = 0
    for one in lines(groups):
        sink.write(one)
        count += 1
    return count


def lines(groups: Iterable[GroupMerged]) -> Iterator[bytes]:
    """Yield one line, with its newline, for each row of each group."""
    for group in groups:
        for row in neutral_rows(group):
            yield line(row)


def line(row: NeutralRow) -> bytes:
    """Return one row as a line of JSON."""
    return _encoder.encode(row) + b"\n"


def _listed(value: Any) -> Any:
    """Return an array as a list. msgspec writes NaN as null."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(type(value).__name__)


_encoder: Final = msgspec.json.Encoder(enc_hook=_listed)
