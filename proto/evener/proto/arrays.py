"""Token arrays on the wire: raw little-endian bytes, one fixed dtype per field, no header.

An array of length T is exactly `T * itemsize` bytes; arrays that describe the same tokens have the same T. A missing value is
NaN for logprobs and -1 for versions and call numbers.
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
    """Return `values` (T whole numbers) as T * 4 bytes."""
    return np.asarray(values, dtype=INT32).tobytes()


def pack_float32(values: ArrayLike) -> bytes:
    """Return `values` (T numbers, NaN where unknown) as T * 4 bytes."""
    return np.asarray(values, dtype=FLOAT32).tobytes()


def pack_uint8(values: ArrayLike) -> bytes:
    """Return `values` (T numbers from 0 to 255) as T bytes."""
    return np.asarray(values, dtype=UINT8).tobytes()


def int32s(field: Bulk) -> NDArray[np.int32]:
    """Return a read-only view int32[T]. Raises ValueError for a length that is not a multiple of 4, TypeError for a reference."""
    return np.frombuffer(inline(field), dtype=INT32)


def float32s(field: Bulk) -> NDArray[np.float32]:
    """Return a read-only view float32[T]. Raises as `int32s`."""
    return np.frombuffer(inline(field), dtype=FLOAT32)


def uint8s(field: Bulk) -> NDArray[np.uint8]:
    """Return a read-only view uint8[T]. Raises TypeError for a reference."""
    return np.frombuffer(inline(field), dtype=UINT8)


def inline(field: Bulk) -> bytes:
    """Return the bytes of a field that was fetched. Raises TypeError where only a reference is at hand."""
    if isinstance(field, bytes):
        return field
    msg = f"blob {field.digest} was not fetched before its bytes were used"
    raise TypeError(msg)


def length(field: Bulk, itemsize: int = 4) -> int:
    """Return the number of elements of a field, fetched or not."""
    return (len(field) if isinstance(field, bytes) else field.size) // itemsize


def check_lengths(owner: str, **fields: tuple[Bulk, int]) -> None:
    """Raise ValueError unless all inline fields, given as (field, itemsize), hold the same number of elements."""
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
