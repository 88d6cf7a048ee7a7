"""A group on its way to a trainer: in parts of which none is long, and together the group."""

import numpy as np
from msgspec import structs
from tests.support.builders import changed, ended, group

from evener.proto.arrays import pack_float32, pack_int32, pack_uint8
from evener.proto.codec import decode
from evener.proto.delivered import PART_BYTES, parts_of
from evener.proto.trajectories import GroupFailed, GroupMerged, Row

ROW_TOKENS = 30_000


def long(row: Row) -> Row:
    """Return the row with many tokens, half a megabyte."""
    numbers, ones = pack_int32(np.zeros(ROW_TOKENS)), pack_uint8(np.ones(ROW_TOKENS))
    return structs.replace(row, ids=numbers, loss_mask=ones, logprobs=pack_float32(np.zeros(ROW_TOKENS)), versions=numbers, call_of=numbers)


def test_parts_of_a_group_are_together_the_group() -> None:
    merged, failed = ended(group((1.0, 0.0, None))), ended(group((None, None)))
    assert (type(merged), type(failed)) == (GroupMerged, GroupFailed)
    for event in (merged, failed):
        assert decode(b"".join(parts_of(event))) == event


def test_one_session_of_many_long_rows_comes_in_many_parts() -> None:
    """64 answers to a prompt of 90,000 tokens are 75 MB of rows: in one piece they stopped the loop for 90 ms."""
    sessions = [changed(one, rows=tuple(map(long, one.trajectory.rows)) * 8) for one in group((1.0, 0.0))]
    event = ended(sessions)
    parts = list(parts_of(event))

    assert decode(b"".join(parts)) == event
    assert max(map(len, parts)) < 2 * PART_BYTES < sum(map(len, parts))
