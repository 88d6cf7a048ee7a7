"""Token arrays: raw little-endian bytes whose lengths agree."""

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.proto.golden_events import CHOICE, ROW

from evener.proto.arrays import float32s, int32s, pack_float32, pack_int32, pack_uint8, uint8s
from evener.proto.blobs import BlobRef
from evener.proto.reasons import ExclusionReason
from evener.proto.trajectories import Accounting

REFERENCE = BlobRef(digest="0" * 64, size=4)


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_whole_numbers_come_back(values: list[int]) -> None:
    """Four bytes an element, little-endian on every machine."""
    packed = pack_int32(values)

    assert len(packed) == 4 * len(values)
    assert int32s(packed).tolist() == values


@given(st.lists(st.floats(width=32, allow_nan=True)))
def test_logprobs_come_back_nan_included(values: list[float]) -> None:
    """NaN says: not reported."""
    np.testing.assert_array_equal(float32s(pack_float32(values)), np.array(values, dtype=np.float32))


def test_masks_are_one_byte_a_token() -> None:
    """A mask is not a bit set."""
    assert uint8s(pack_uint8([0, 1, 1])).tolist() == [0, 1, 1]


def test_a_reference_is_fetched_before_its_bytes_are_used() -> None:
    """Forgetting to inflate an event is an error, not an empty array."""
    with pytest.raises(TypeError, match="was not fetched"):
        int32s(REFERENCE)


@pytest.mark.parametrize("field", ["loss_mask", "logprobs", "versions", "call_of"])
def test_row_with_arrays_of_different_lengths_is_refused(field: str) -> None:
    """Every array of a row describes the same tokens."""
    with pytest.raises(ValueError, match="differ in length"):
        msgspec.structs.replace(ROW, **{field: b""})


@pytest.mark.parametrize(("field", "wrong"), [("logprobs", b"\0" * 8), ("versions", b"\0" * 7)])
def test_choice_with_wrong_arrays_is_refused(field: str, wrong: bytes) -> None:
    """Also a length that is no number of elements."""
    with pytest.raises(ValueError, match=r"differ in length|not a multiple"):
        msgspec.structs.replace(CHOICE, **{field: wrong})


def test_lengths_are_checked_when_decoding_too() -> None:
    """A record with wrong arrays is a bad record, whoever wrote it."""
    fields: dict[str, Any] = msgspec.to_builtins(CHOICE, builtin_types=(bytes,)) | {"logprobs": b"\0" * 4}

    with pytest.raises(msgspec.ValidationError, match="differ in length"):
        msgspec.msgpack.decode(msgspec.msgpack.encode(fields), type=type(CHOICE))


def test_a_field_that_was_moved_to_the_blob_store_is_not_measured() -> None:
    """The claim check of a row may take its largest arrays only."""
    assert msgspec.structs.replace(ROW, ids=REFERENCE).ids == REFERENCE


def test_books_that_do_not_balance_are_refused() -> None:
    """Delivered and left out are sampled, always."""
    with pytest.raises(ValueError, match="is not sampled 9"):
        Accounting(sampled=9, delivered=4, excluded={ExclusionReason.ORPHAN: 4})
