"""What every bus determines for a record before it writes it: its size and its partition."""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from evener.bus.port import MAX_RECORD_BYTES, GroupOffset, Outgoing, RecordTooLarge

_SEED: Final = 0x9747B28C
_MIX: Final = 0x5BD1E995
_WORD: Final = 0xFFFFFFFF


def record_bytes(record: Outgoing) -> int:
    """Return the bytes of value, key and headers."""
    headers = sum(len(header.name) + len(header.value) for header in record.headers)
    return len(record.value or b"") + len(record.key.encode()) + headers


def check(records: Iterable[Outgoing], offsets: Iterable[GroupOffset], partitions: Mapping[str, int]) -> None:
    """Refuse what no bus can write, before anything is written. `partitions` is the number of partitions of each topic.

    Raises RecordTooLarge, and ValueError for a topic or a partition that does not exist.
    """
    for record in records:
        _check_place(record.topic, record.partition or 0, partitions)
        size = record_bytes(record)
        if size > MAX_RECORD_BYTES:
            msg = f"record {record.key} of topic {record.topic} has {size} bytes, {MAX_RECORD_BYTES} are allowed"
            raise RecordTooLarge(msg)
    for offset in offsets:
        _check_place(offset.position.topic, offset.position.partition, partitions)


def _check_place(topic: str, partition: int, partitions: Mapping[str, int]) -> None:
    if not 0 <= partition < partitions.get(topic, 0):
        msg = f"there is no partition {partition} of topic {topic}"
        raise ValueError(msg)


def group_of_offsets(offsets: Sequence[GroupOffset]) -> str | None:
    """Return the one group whose offsets these are. None: there are no offsets. Raises ValueError for more than one group."""
    groups = {offset.group for offset in offsets}
    if len(groups) > 1:
        msg = f"one commit holds offsets of one group, not of {sorted(groups)}"
        raise ValueError(msg)
    return groups.pop() if groups else None


@lru_cache(maxsize=4096)
def partition_for(key: str, partitions: int) -> int:
    """Return the partition of a key among `partitions`, as Kafka's default partitioner places it."""
    return (murmur2(key.encode()) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """Return the 32-bit MurmurHash2 of `data` with Kafka's seed."""
    state = _SEED ^ len(data)
    whole = len(data) - len(data) % 4
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little") * _MIX & _WORD
        word = (word ^ word >> 24) * _MIX & _WORD
        state = (state * _MIX & _WORD) ^ word
    if rest := data[whole:]:
        state = (state ^ int.from_bytes(rest, "little")) * _MIX & _WORD
    state = (state ^ state >> 13) * _MIX & _WORD
    return state ^ state >> 15
