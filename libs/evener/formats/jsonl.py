"""Writes neutral rows as JSON lines: arrays become lists, and a missing logprob is null."""

from collections.abc import Iterable, Mapping
from typing import IO, Any, Final

import msgspec
import numpy as np

from evener.formats.neutral import NO_REGRADES, neutral_rows
from evener.formats.port import NeutralFile
from evener.proto.trajectories import GroupMerged


def write(groups: Iterable[GroupMerged], sink: IO[bytes], regrades: Mapping[str, str] = NO_REGRADES) -> int:
    """Write all rows of the groups; return their number. `regrades`: the name of the regrade whose reward a session has."""
    count = 0
    for group in groups:
        for row in neutral_rows(group, regrades):
            sink.write(line(row))
            count += 1
    return count


def line(row: object) -> bytes:
    """Return one row, or a record of a trainer's format, as a line of JSON with its newline."""
    return _encoder.encode(row) + b"\n"


def _listed(value: Any) -> Any:
    """Return an array as a list. msgspec writes NaN as null."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(type(value).__name__)


_encoder: Final = msgspec.json.Encoder(enc_hook=_listed)

FORMAT: Final = NeutralFile(write)
