"""The claim check: a record that is too large moves its largest bulk fields to the blob store and carries their references.

Only fields of type `Bulk` move, wherever they are nested. A field of type `BlobRef` is data and stays.
"""

import asyncio
import types
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

from msgspec import Struct, structs

from evener.blobs.port import Blobs
from evener.proto.blobs import INLINE_LIMIT_BYTES, BlobRef, Bulk
from evener.proto.codec import encode
from evener.proto.sessions import Event

REF_BYTES: Final = 100
"""The approximate size of a reference in a record. Fields below twice that size stay."""
PREFIX_BYTES: Final = 4
"""How much longer the prefix of a long field is than that of an empty one, in msgpack, at most."""
ENCODED_BYTES: Final = 1 << 20
"""Events with more bytes than these in their bulk fields are not encoded for their size: a copy of 75 MB stops the event loop."""
CONCURRENT: Final = 16
"""The number of objects that one event moves or fetches at a time."""

E = TypeVar("E", bound=Event)
T = TypeVar("T")


async def offload(event: E, blobs: Blobs, limit: int = INLINE_LIMIT_BYTES) -> E:
    """Return the event with its largest bulk fields in `blobs`, so that it encodes to at most `limit` bytes, or as near as possible.

    An event that is small enough is returned as it is. Equal events give equal events. Raises BlobError.
    """
    excess = _size(event) - limit
    if excess <= 0:
        return event
    moving = {id(field): field for field in _largest(event, excess)}  # by identity: hashing them all would stop the event loop
    refs = dict(zip(moving, await _each(blobs.put, moving.values()), strict=True))
    moved: E = _changed(event, lambda field: refs.get(id(field), field))
    return moved


async def hydrate(event: E, blobs: Blobs) -> E:
    """Return the event with the bytes of all its bulk fields. Raises BlobError."""
    refs = dict.fromkeys(moved(event))
    if not refs:
        return event
    fetched = dict(zip(refs, await _each(blobs.get, refs), strict=True))
    whole: E = _changed(event, lambda field: fetched[field] if isinstance(field, BlobRef) else field)
    return whole


def moved(event: Event) -> Iterator[BlobRef]:
    """Yield the references of the bulk fields of an event that are in the blob store."""
    return (field for field in _bulks(event) if isinstance(field, BlobRef))


def inline_bytes(event: Event) -> int:
    """Return the size of the bulk fields that are in an event."""
    return sum(map(len, _inline(event)))


def _size(event: Event) -> int:
    """Return the encoded size of an event, without encoding fields that are many megabytes together."""
    fields = list(_inline(event))
    if (inline := sum(map(len, fields))) <= ENCODED_BYTES:
        return len(encode(event))
    bare = _changed(event, lambda field: field if isinstance(field, BlobRef) else b"")
    return len(encode(bare)) + inline + PREFIX_BYTES * len(fields)


def _inline(event: Event) -> Iterator[bytes]:
    return (field for field in _bulks(event) if isinstance(field, bytes))


def _largest(event: Event, excess: int) -> Iterator[bytes]:
    """Yield the fields to move, the largest first, until `excess` bytes are gone."""
    for field in sorted(_inline(event), key=len, reverse=True):
        if excess <= 0 or len(field) < 2 * REF_BYTES:
            return
        yield field
        excess -= len(field) - REF_BYTES


async def _each(work: Callable[[T], Any], items: Iterable[T]) -> list[Any]:
    gate = asyncio.Semaphore(CONCURRENT)

    async def one(item: T) -> Any:
        async with gate:
            return await work(item)

    return await asyncio.gather(*map(one, items))


def _bulks(value: Any) -> Iterator[Bulk]:
    """Yield all bulk fields of an event, including those nested in its fields, tuples and dictionaries."""
    if isinstance(value, Struct):
        bulk, nested = _fields(type(value))
        for name in bulk:
            if (field := getattr(value, name)) is not None:
                yield field
        for name in nested:
            yield from _bulks(getattr(value, name))
    elif isinstance(value, tuple | list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _bulks(item)


def _changed(value: Any, change: Callable[[Bulk], Bulk]) -> Any:
    """Return `value` with `change` applied to each of its bulk fields, or the same object if nothing changed."""
    if isinstance(value, Struct):
        bulk, nested = _fields(type(value))
        new = {name: change(field) for name in bulk if (field := getattr(value, name)) is not None}
        new |= {name: _changed(getattr(value, name), change) for name in nested}
        new = {name: field for name, field in new.items() if field is not getattr(value, name)}
        return structs.replace(value, **new) if new else value
    if isinstance(value, tuple | list):
        items = [_changed(item, change) for item in value]
        if any(new is not old for new, old in zip(items, value, strict=True)):
            return type(value)(items)
    elif isinstance(value, dict):
        pairs = {key: _changed(item, change) for key, item in value.items()}
        if any(pairs[key] is not value[key] for key in value):
            return pairs
    return value


@cache
def _fields(struct: type[Struct]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of a Struct's bulk fields, and of its fields in which Structs with bulk fields are nested."""
    hints = get_type_hints(struct, include_extras=False)
    bulk = tuple(name for name in struct.__struct_fields__ if {bytes, BlobRef} <= set(_members(hints[name])))
    nested = tuple(name for name in struct.__struct_fields__ if name not in bulk and _reaches(hints[name]))
    return bulk, nested


def _reaches(hint: Any) -> bool:
    for member in _members(hint):
        if isinstance(member, type) and issubclass(member, Struct):
            if any(_fields(member)):
                return True
        elif any(_reaches(argument) for argument in get_args(member)):
            return True
    return False


def _members(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the type itself."""
    if get_origin(hint) is Annotated:
        return _members(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(member for argument in get_args(hint) for member in _members(argument))
    return (hint,)
