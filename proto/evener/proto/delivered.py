"""A group as trainers receive it: from `GET /groups/follow`, or from Kafka in its place."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct, structs

from evener.proto.letters import position_text
from evener.proto.topics import Topic
from evener.proto.trajectories import GroupFailed, GroupMerged, GroupOutcome, Member, Row, TrajectoryBuilt, TrajectoryScored

_encoder: Final = msgspec.msgpack.Encoder()
MAP_16: Final = b"\xde"
ARRAY_32: Final = b"\xdd"
PART_BYTES: Final = 1 << 20
LEADS_TO_ROWS: Final = (GroupMerged, GroupFailed, Member, TrajectoryScored, TrajectoryBuilt)


class GroupPosition(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first frame of a record of `trajectories.merged` in GET /groups/follow, and where the next one of its partition is read."""

    partition: int
    offset: int
    next_offset: int
    parts: int = 0
    """The number of frames that follow: together they are the GroupMerged or GroupFailed, as msgpack. 0: the record cannot be read."""

    @property
    def replay(self) -> str:
        """The command that appends the record again once it can be read."""
        return f"evener dead-letters replay {position_text(Topic.MERGED, self.partition, self.offset)}"


class Delivered(Struct, frozen=True, kw_only=True, eq=False):
    """A record of `trajectories.merged`."""

    position: GroupPosition
    group: GroupOutcome | None
    """The group with its blobs. None: the record cannot be read."""


def parts_of(group: GroupOutcome) -> Iterator[bytes]:
    """Yield a group as msgpack, in parts of about a megabyte.

    Encoding does not let other threads run, and a group may have 100 MB, also in a single session. Between two rows they do.
    """
    part = bytearray()
    for piece in _encoded(group):
        part += piece
        if len(part) >= PART_BYTES:
            yield bytes(part)
            part.clear()
    if part:
        yield bytes(part)


def _encoded(value: Any) -> Iterator[bytes]:
    """Yield a value as msgpack. What leads to rows is encoded field by field, everything else whole."""
    if isinstance(value, LEADS_TO_ROWS):
        config = value.__struct_config__
        fields = structs.asdict(value) if config.tag is None else {str(config.tag_field): config.tag, **structs.asdict(value)}
        yield MAP_16 + len(fields).to_bytes(2, "big")
        for name, field in fields.items():
            yield _encoder.encode(name)
            yield from _encoded(field)
    elif isinstance(value, tuple) and value and isinstance(value[0], Member | Row):
        yield ARRAY_32 + len(value).to_bytes(4, "big")
        for item in value:
            yield from _encoded(item)
    else:
        yield _encoder.encode(value)
