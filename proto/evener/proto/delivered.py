"""A group as trainers receive it: a frame of `GET /groups/follow`, and what is read from Kafka in its place."""

from msgspec import Raw, Struct


class Delivered(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A frame of GET /groups/follow: a record of `trajectories.merged`, and where the next one of its partition is read."""

    partition: int
    offset: int
    next_offset: int
    group: Raw
    """The GroupMerged or GroupFailed, as msgpack."""
