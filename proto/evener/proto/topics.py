"""The registry of topics, with their keys, events and retention. A topic that is not listed here does not exist."""

from enum import StrEnum
from typing import Final

from msgspec import Struct


class Topic(StrEnum):
    """The names of the topics."""

    TASKS = "tasks"
    DISPATCH = "dispatch"
    SESSIONS = "sessions"
    BUILT = "trajectories.built"
    SCORED = "trajectories.scored"
    MERGED = "trajectories.merged"
    KEPT = "trajectories.kept"
    POLICIES = "policies"
    FLEET = "fleet"
    SCHEDULER_STATE = "state.scheduler"
    BRIDGE_STATE = "state.bridge"
    DEAD_LETTERS = "dead-letters"


class TopicSpec(Struct, frozen=True, kw_only=True):
    """How a topic is created."""

    name: Topic
    key: str
    partitioned: bool
    """True: the topic has as many partitions as the deployment (`sessions` and the topics after it). False: one, so that its order is
    total."""
    compacted: bool = False


TOPICS: Final[dict[Topic, TopicSpec]] = {
    spec.name: spec
    for spec in (
        TopicSpec(name=Topic.TASKS, key="task id", partitioned=False),
        TopicSpec(name=Topic.DISPATCH, key="runner id", partitioned=False),
        TopicSpec(name=Topic.SESSIONS, key="session id", partitioned=True),
        TopicSpec(name=Topic.BUILT, key="session id", partitioned=True),
        TopicSpec(name=Topic.SCORED, key="group id", partitioned=True),
        TopicSpec(name=Topic.MERGED, key="group id", partitioned=True),
        TopicSpec(name=Topic.KEPT, key="group id", partitioned=True),
        TopicSpec(name=Topic.POLICIES, key="policy@version", partitioned=False, compacted=True),
        TopicSpec(name=Topic.FLEET, key="instance id", partitioned=False, compacted=True),
        TopicSpec(name=Topic.SCHEDULER_STATE, key="task id", partitioned=False, compacted=True),
        TopicSpec(name=Topic.BRIDGE_STATE, key="group id", partitioned=True, compacted=True),
        TopicSpec(name=Topic.DEAD_LETTERS, key="original key", partitioned=False),
    )
}

HEADER_TYPE: Final = "evener-type"
"""Record header: the event's tag, so that a reader can skip the record without decoding it."""
HEADER_SESSION: Final = "evener-session"
HEADER_GROUP: Final = "evener-group"
HEADER_CLAIM: Final = "evener-claim"
"""Record header, set if the whole event was moved to the blob store: the value is then a msgpack BlobRef."""
HEADER_CRC: Final = "evener-crc"
"""Record header: the CRC-32 of the value, 4 bytes big-endian, because not every log notices a flipped bit."""
