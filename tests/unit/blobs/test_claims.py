"""The claim check: what moves, what stays, and that everything comes back."""

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.builders import built

from evener.blobs.claims import ENCODED_BYTES, hydrate, offload
from evener.blobs.open import open_blobs
from evener.blobs.port import BlobError, Blobs
from evener.blobs.store import ref_of
from evener.proto.arrays import pack_float32, pack_int32
from evener.proto.blobs import INLINE_LIMIT_BYTES, BlobRef
from evener.proto.codec import encode
from evener.proto.reasons import ExitCause
from evener.proto.sessions import Artifact, CallClosed, Choice, FinishReason, HarnessExited


def closed(*lengths: int, message: bytes = b"{}") -> CallClosed:
    """A call with a choice for each length, of so many sampled tokens."""
    choices = tuple(
        Choice(
            sampled_ids=pack_int32(range(seed, seed + length)),
            logprobs=pack_float32([-0.5 - seed] * length),
            versions=pack_int32([seed] * length),
            finish_reason=FinishReason.STOP,
            message=message,
        )
        for seed, length in enumerate(lengths)
    )
    return CallClosed(
        session_id="t.0", attempt=1, call_id="c1", request_id="r1", choices=choices, answer_id="a", answer_created=1, closed_at=1.0
    )


def memory() -> Blobs:
    return open_blobs("memory://")


async def test_small_event_is_returned_as_it_is() -> None:
    """Nearly all events: no walk, no copy, no store."""
    event = closed(100, 20)
    assert await offload(event, memory()) is event
    assert await hydrate(event, memory()) is event


async def test_largest_fields_move_until_the_record_is_below_the_limit() -> None:
    """Small ones stay where a reader sees them at once."""
    blobs = memory()
    event = closed(40_000, 10, message=b'{"role":"assistant"}')
    moved = await offload(event, blobs)

    assert len(encode(moved)) <= INLINE_LIMIT_BYTES
    big, small = moved.choices
    assert isinstance(big.sampled_ids, BlobRef)
    assert small == event.choices[1]
    assert big.message == event.choices[0].message
    assert encode(await hydrate(moved, blobs)) == encode(event)


async def test_bulk_nested_in_rows_moves_too() -> None:
    """A trajectory of many rows is one record."""
    blobs = memory()
    event = built(turns=((900, 300), (200, 100)))
    moved = await offload(event, blobs, limit=len(encode(event)) // 2)
    assert len(encode(moved)) < len(encode(event))
    assert encode(await hydrate(moved, blobs)) == encode(event)


async def test_field_that_is_a_reference_by_its_type_stays_one() -> None:
    """An artifact is fetched by who wants it, never by who reads the event."""
    ref = ref_of(b"never stored anywhere")
    event = HarnessExited(
        session_id="t.0",
        attempt=1,
        start_id="s",
        cause=ExitCause.EXITED,
        artifacts=(Artifact(name="changes.tar", blob=ref),),
        exited_at=1.0,
    )
    assert await hydrate(event, memory()) is event


async def test_missing_object_is_an_error_not_an_empty_field() -> None:
    """A token array that cannot be found must not become one of length 0."""
    moved = await offload(closed(50_000), memory())
    with pytest.raises(BlobError, match="is not in"):
        await hydrate(moved, memory())


async def test_event_of_many_megabytes_is_measured_field_by_field() -> None:
    """A copy of all its fields stopped the event loop for 190 ms. It is as small afterwards as if it had been copied."""
    event = closed(*[20_000] * 12)
    assert len(encode(event)) > 2 * ENCODED_BYTES
    blobs = memory()
    moved = await offload(event, blobs)
    assert INLINE_LIMIT_BYTES - 20_000 * 4 < len(encode(moved)) <= INLINE_LIMIT_BYTES
    assert encode(await hydrate(moved, blobs)) == encode(event)
    assert encode(await offload(closed(*[20_000] * 12), memory())) == encode(moved), "equal events, equal records"


async def test_event_that_cannot_be_made_small_moves_what_it_can() -> None:
    """The bus says then that the record is too large; nothing is lost on the way."""
    blobs = memory()
    event = msgspec.structs.replace(closed(500), session_id="x" * 2000)
    moved = await offload(event, blobs, limit=100)
    assert await hydrate(moved, blobs) == event


@given(
    lengths=st.lists(st.integers(0, 400), min_size=1, max_size=5),
    message=st.binary(max_size=2000),
    limit=st.integers(0, 8000),
)
def test_round_trip_gives_equal_bytes(lengths: list[int], message: bytes, limit: int) -> None:
    """Whatever moves: deflating twice gives the same record, inflating gives the first one."""

    async def round_trip() -> None:
        blobs = memory()
        event = closed(*lengths, message=message)
        moved = await offload(event, blobs, limit)
        assert encode(await offload(event, memory(), limit)) == encode(moved)
        assert len(encode(moved)) <= max(limit, len(encode(event)))
        assert encode(await hydrate(moved, blobs)) == encode(event)

    asyncio.run(round_trip())
