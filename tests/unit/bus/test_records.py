"""Sizes, partitions, and offsets that finish out of order."""

import pytest
from aiokafka.partitioner import DefaultPartitioner
from hypothesis import given
from hypothesis import strategies as st

from evener.bus.offsets import Contiguous
from evener.bus.open import open_bus
from evener.bus.port import MAX_RECORD_BYTES, Header, Outgoing, RecordTooLarge
from evener.bus.records import check, partition_for
from evener.proto.errors import ConfigError

ONE = {"sessions": 1}


@given(key=st.text(max_size=50), partitions=st.integers(1, 64))
def test_key_has_the_partition_that_kafkas_default_partitioner_gives_it(key: str, partitions: int) -> None:
    """Whoever else writes to the topic finds the same partition."""
    everywhere = list(range(partitions))
    assert partition_for(key, partitions) == DefaultPartitioner()(key.encode(), everywhere, everywhere)


def test_key_and_headers_count_towards_the_limit_of_a_record() -> None:
    """The broker counts them too."""
    headers = (Header("traceparent", bytes(40)),)
    fits = Outgoing(topic="sessions", key="s" * 10, value=bytes(MAX_RECORD_BYTES - 61), headers=headers)
    check([fits], (), ONE)
    with pytest.raises(RecordTooLarge, match=f"{MAX_RECORD_BYTES + 1} bytes"):
        check([fits, Outgoing(topic="sessions", key="s" * 11, value=fits.value, headers=headers)], (), ONE)


def test_offset_is_committed_only_when_all_before_it_are_finished() -> None:
    """A reader that dies repeats the unfinished one, and what came after it."""
    offsets = Contiguous(5)
    for offset in (5, 7, 8, 12):
        offsets.handed_out(offset)
    assert offsets.finished(7) == 5
    assert offsets.finished(5) == 8
    assert offsets.finished(12) == 8
    assert offsets.finished(8) == 13


def test_offsets_that_were_not_handed_out_are_refused() -> None:
    """A mistake in the reader's book-keeping must not become a skipped record."""
    offsets = Contiguous(0)
    offsets.handed_out(3)
    with pytest.raises(ValueError, match="after 3"):
        offsets.handed_out(3)
    with pytest.raises(KeyError):
        offsets.finished(2)


@given(order=st.permutations(range(12)), gaps=st.lists(st.integers(1, 3), min_size=12, max_size=12))
def test_every_order_of_finishing_ends_behind_the_last_record(order: list[int], gaps: list[int]) -> None:
    """And never passes an unfinished one on the way."""
    given_out = [sum(gaps[: index + 1]) for index in range(12)]
    offsets = Contiguous(0)
    for offset in given_out:
        offsets.handed_out(offset)
    finished = set()
    for index in order:
        finished.add(given_out[index])
        commit = offsets.finished(given_out[index])
        assert {offset for offset in given_out if offset < commit} <= finished
    assert offsets.next_offset == given_out[-1] + 1


async def test_unknown_kind_of_bus_is_refused_by_name() -> None:
    """A typing mistake is an error at start."""
    with pytest.raises(ConfigError, match="redis://host"):
        async with open_bus("redis://host"):
            pass
