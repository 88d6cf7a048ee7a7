"""The settings that Evener's topics have on a Kafka cluster, one table for those that make topics and those that compare them."""

from collections.abc import Mapping
from typing import Final

from evener.proto.topics import RetentionDays, TopicSpec

REPLICAS: Final = 3
"""The number of replicas if the cluster has as many brokers. A record then counts when two have it."""
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
FOR_EVER: Final = "-1"
EVERY_TOPIC: Final = {
    "message.timestamp.type": "LogAppendTime",  # record times are compared, and the writers have as many clocks as machines
    "max.message.bytes": "1048588",  # above the bus's own limit of a record, with what a batch adds
    "retention.bytes": FOR_EVER,
}
COMPACTED: Final = {"cleanup.policy": "compact", "segment.ms": "600000", "segment.bytes": "16777216", "min.cleanable.dirty.ratio": "0.1"}
"""Settings of compacted topics. By default a segment of 1 GB or 7 days is compacted, and a starting process would read a week of
heartbeats."""
DELETED: Final = {"cleanup.policy": "delete", "segment.bytes": "268435456"}
SEGMENTS: Final = 4
"""Whole segments are deleted: with a quarter of the retention each, records are kept for at most a quarter longer."""
VITAL: Final = "cleanup.policy"
"""With another value of this setting records are lost, or never deleted: no process starts."""


def replicas_for(brokers: int) -> int:
    """Return the number of replicas of a topic on a cluster with so many brokers."""
    return min(REPLICAS, brokers)


def settings_of(spec: TopicSpec, days: RetentionDays, replicas: int) -> dict[str, str]:
    """Return the settings of a topic that has so many replicas."""
    settings = EVERY_TOPIC | {"min.insync.replicas": str(max(1, replicas_for(replicas) - 1))}
    if spec.compacted:
        return settings | COMPACTED
    kept = days.of(spec.retention)
    retention_ms = None if kept is None else round(kept * DAY_MS)
    segment_ms = DAY_MS if retention_ms is None else min(DAY_MS, max(HOUR_MS, retention_ms // SEGMENTS))
    return settings | DELETED | {"retention.ms": str(retention_ms or FOR_EVER), "segment.ms": str(segment_ms)}


def differing(wanted: Mapping[str, str], found: Mapping[str, str]) -> dict[str, tuple[str | None, str]]:
    """Return the settings with another value than the wanted one, each with both. None: the broker does not tell the value."""
    return {key: (found.get(key), value) for key, value in wanted.items() if found.get(key) != value}
