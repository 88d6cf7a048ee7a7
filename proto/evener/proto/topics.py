"""The registry of topics, with their keys, events and retention. A topic that is not listed here does not exist."""

from enum import StrEnum
from typing import Final

from msgspec import Struct

from evener.proto.spec import Purpose


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
    LEASES = "leases"
    SCHEDULER_STATE = "state.scheduler"
    BRIDGE_STATE = "state.bridge"
    DEAD_LETTERS = "dead-letters"


class Retention(StrEnum):
    """How long the records of a topic are kept."""

    LAST = "the last record of each key, for ever"
    LOG = "log_retention_days"
    WORK = "work_retention_days"
    LETTERS = "dead_letter_retention_days"
    DISPATCH = "a day"


class RetentionDays(Struct, frozen=True, kw_only=True):
    """The days that a deployment keeps records. 0: for ever."""

    log: float = 30.0
    """Tasks, sessions and delivered groups."""
    work: float = 7.0
    """Trajectories on their way from one service to the next."""
    letters: float = 90.0
    """Dead letters."""

    def of(self, retention: Retention) -> float | None:
        """Return the days of a topic's records. None: for ever, or the topic is compacted."""
        days = {Retention.LOG: self.log, Retention.WORK: self.work, Retention.LETTERS: self.letters, Retention.DISPATCH: 1.0}.get(retention)
        return days or None


DEFAULT_RETENTION: Final = RetentionDays()


class TopicSpec(Struct, frozen=True, kw_only=True):
    """How a topic is created."""

    name: Topic
    key: str
    partitioned: bool
    """True: the topic has as many partitions as the deployment, so that no reader needs all of it. False: one, so that its order is
    total."""
    retention: Retention

    @property
    def compacted(self) -> bool:
        """Whether only the last record of each key is kept."""
        return self.retention is Retention.LAST


TOPICS: Final[dict[Topic, TopicSpec]] = {
    spec.name: spec
    for spec in (
        TopicSpec(name=Topic.TASKS, key="task id", partitioned=False, retention=Retention.LOG),
        TopicSpec(name=Topic.DISPATCH, key="runner id", partitioned=True, retention=Retention.DISPATCH),
        TopicSpec(name=Topic.SESSIONS, key="session id", partitioned=True, retention=Retention.LOG),
        TopicSpec(name=Topic.BUILT, key="session id", partitioned=True, retention=Retention.WORK),
        TopicSpec(name=Topic.SCORED, key="group id", partitioned=True, retention=Retention.WORK),
        TopicSpec(name=Topic.MERGED, key="group id", partitioned=True, retention=Retention.LOG),
        TopicSpec(name=Topic.KEPT, key="group id", partitioned=True, retention=Retention.LOG),
        TopicSpec(name=Topic.POLICIES, key="policy@version", partitioned=False, retention=Retention.LAST),
        TopicSpec(name=Topic.FLEET, key="instance id", partitioned=False, retention=Retention.LAST),
        TopicSpec(name=Topic.LEASES, key="instance id", partitioned=False, retention=Retention.LAST),
        TopicSpec(name=Topic.SCHEDULER_STATE, key="task id", partitioned=False, retention=Retention.LAST),
        TopicSpec(name=Topic.BRIDGE_STATE, key="group id", partitioned=True, retention=Retention.LAST),
        TopicSpec(name=Topic.DEAD_LETTERS, key="original key", partitioned=False, retention=Retention.LETTERS),
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

GROUP_TOPIC: Final = {Purpose.TRAIN: Topic.MERGED, Purpose.EVAL: Topic.KEPT, Purpose.COLLECT: Topic.KEPT}
"""The topic of a group's record, by purpose. Nothing that was evaluated or collected is ever trained."""
