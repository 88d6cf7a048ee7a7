"""What Evener needs of a Kafka broker's own settings. Only the cluster's operator can change those."""

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

from evener.bus.kafka_group import SESSION_MS
from evener.bus.kafka_producer import TRANSACTION_MS
from evener.bus.topic_settings import DAY_MS, REPLICAS
from evener.proto.topics import TOPICS, RetentionDays

MINUTES: Final = 24 * 60
YEAR_DAYS: Final = 365.0
"""What offsets must outlast at least if records are kept for ever."""


class Limit(Struct, frozen=True, kw_only=True):
    """A limit of a broker's setting, which is a number."""

    setting: str
    least: int | None = None
    most: int | None = None
    why: str

    def broken_by(self, found: str) -> bool:
        """Return whether a value is outside the limit."""
        try:
            value = int(found)
        except ValueError:
            return True
        return (self.least is not None and value < self.least) or (self.most is not None and value > self.most)

    def __str__(self) -> str:
        return f"at least {self.least}" if self.least is not None else f"at most {self.most}"


def limits(days: RetentionDays, brokers: int) -> Iterator[Limit]:
    """Yield the settings that a cluster with this number of brokers must have."""
    kept = max(days.of(spec.retention) or YEAR_DAYS for spec in TOPICS.values() if spec.partitioned and not spec.compacted)
    yield Limit(
        setting="offsets.retention.minutes",
        least=round(kept * MINUTES),
        why="a service whose offset is forgotten reads a topic from its beginning, and may deliver groups again",
    )
    yield Limit(setting="transaction.max.timeout.ms", least=TRANSACTION_MS, why="or no transaction can begin")
    yield Limit(setting="transactional.id.expiration.ms", least=DAY_MS, why="an idle owner would lose its partition")
    yield Limit(
        setting="transaction.abort.timed.out.transaction.cleanup.interval.ms",
        most=TRANSACTION_MS,
        why="the open transaction of a dead owner hides later records for that much longer",
    )
    yield Limit(setting="group.min.session.timeout.ms", most=SESSION_MS, why="or no service can join its group")
    yield Limit(setting="group.max.session.timeout.ms", least=SESSION_MS, why="or no service can join its group")
    if brokers >= REPLICAS:
        yield Limit(setting="offsets.topic.replication.factor", least=REPLICAS, why="one lost broker would take offsets with it")
        yield Limit(setting="transaction.state.log.replication.factor", least=REPLICAS, why="one lost broker would stop transactions")
        yield Limit(setting="transaction.state.log.min.isr", least=REPLICAS - 1, why="or a transaction counts that one broker has")


def broken(days: RetentionDays, brokers: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, Limit, str]]:
    """Yield broker, limit and value of each setting outside its limit. `brokers`: the settings by broker."""
    for broker, settings in sorted(brokers.items()):
        for limit in limits(days, len(brokers)):
            if limit.setting in settings and limit.broken_by(settings[limit.setting]):
                yield broker, limit, settings[limit.setting]
