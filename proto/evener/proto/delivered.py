"""A group as trainers receive it: from `GET /groups/follow`, or from Kafka in its place."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct, structs

from evener.proto.letters import position_text
from evener.proto.topics import Topic
from evener.proto.trajectories import GroupOutcome

_encoder: Final = msgspec.msgpack.Encoder()
MAP_16: Final = b"\xde"
ARRAY_32: Final = b"\xdd"
MEMBERS: Final = "members"


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
    """Yield a group as msgpack, each of its members alone.

    Encoding does not let other threads run, and a group may have 100 MB. Between two parts they do.
    """
    fields: dict[str, Any] = {str(group.__struct_config__.tag_field): group.__struct_config__.tag, **structs.asdict(group)}
    members = fields.pop(MEMBERS)
    yield MAP_16 + (len(fields) + 1).to_bytes(2, "big") + b"".join(_encoder.encode(part) for pair in fields.items() for part in pair)
    yield _encoder.encode(MEMBERS) + ARRAY_32 + len(members).to_bytes(4, "big")
    yield from map(_encoder.encode, members)
