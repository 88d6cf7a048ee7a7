"""Token arrays on the wire: raw little-endian bytes with one fixed dtype per field and no header.

An array of length T takes exactly `T * itemsize` bytes. Arrays that describe the same tokens have the same T. A missing value is NaN in
logprobs, and -1 in versions and call numbers.
"""

from typing import Annotated, Final

import numpy as np
from msgspec import Meta
from numpy.typing import ArrayLike, NDArray

from evener.proto.blobs import Bulk

INT32: Final = np.dtype("<i4")
FLOAT32: Final = np.dtype("<f4")
UINT8: Final = np.dtype("|u1")

Int32s = Annotated[Bulk, Meta(description="int32 little-endian, 4 bytes an element, or a blob reference to them.")]
Float32s = Annotated[Bulk, Meta(description="float32 little-endian, 4 bytes an element, or a blob reference to them.")]
Uint8s = Annotated[Bulk, Meta(description="uint8, 1 byte an element, or a blob reference to them.")]
JsonText = Annotated[Bulk, Meta(description="UTF-8 JSON text, or a blob reference to it.")]


def pack_int32(values: ArrayLike) -> bytes:
    """Return `values` (T integers) as T * 4 bytes."""
    return np.asarray(values, dtype=INT32).tobytes()


def pack_float32(values: ArrayLike) -> bytes:
    """Return `values` (T numbers, NaN where unknown) as T * 4 bytes."""
    return np.asarray(values, dtype=FLOAT32).tobytes()


def pack_uint8(values: ArrayLike) -> bytes:
    """Return `values` (T integers from 0 to 255) as T bytes."""
    return np.asarray(values, dtype=UINT8).tobytes()


def int32s(field: Bulk) -> NDArray[np.int32]:
    """Return a read-only view int32[T]. Raises ValueError if the length is not a multiple of 4, TypeError for a blob reference."""
    return np.frombuffer(inline(field), dtype=INT32)


def float32s(field: Bulk) -> NDArray[np.float32]:
    """Return a read-only view float32[T]. Raises the same errors as `int32s`."""
    return np.frombuffer(inline(field), dtype=FLOAT32)


def uint8s(field: Bulk) -> NDArray[np.uint8]:
    """Return a read-only view uint8[T]. Raises TypeError for a blob reference."""
    return np.frombuffer(inline(field), dtype=UINT8)


def inline(field: Bulk) -> bytes:
    """Return the bytes of a field that is in the record or was fetched. Raises TypeError for a blob reference."""
    if isinstance(field, bytes):
        return field
    msg = f"blob {field.digest} was not fetched before its bytes were used"
    raise TypeError(msg)


def length(field: Bulk, itemsize: int = 4) -> int:
    """Return the number of elements in a field, whether it was fetched or not."""
    return (len(field) if isinstance(field, bytes) else field.size) // itemsize


def check_lengths(owner: str, **fields: tuple[Bulk, int]) -> None:
    """Raise ValueError unless all inline fields, each given as (field, itemsize), hold the same number of elements."""
    lengths: dict[str, int] = {}
    for name, (field, itemsize) in fields.items():
        if not isinstance(field, bytes):
            continue
        length, rest = divmod(len(field), itemsize)
        if rest:
            msg = f"{owner}.{name} holds {len(field)} bytes, not a multiple of {itemsize}"
            raise ValueError(msg)
        lengths[name] = length
    if len(set(lengths.values())) > 1:
        msg = f"{owner}: arrays of the same tokens differ in length: {lengths}"
        raise ValueError(msg)
