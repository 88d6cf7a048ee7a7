"""Measures how many records the services of this process have still to read, as metrics and as a summary for heartbeats."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

import structlog

from evener.bus.port import Bus, ReaderLag
from evener.proto.errors import EvenerError
from evener.proto.fleet import TopicLag
from evener.service.telemetry import Metrics

LAG_POLL_SECONDS: Final = 2.0
"""The pause between measurements: as long as that between heartbeats."""

log = structlog.get_logger()


class LagWatch:
    """The lag of every reader of this process, as it was last measured."""

    def __init__(self, bus: Bus, metrics: Metrics, *, look_seconds: float = LAG_POLL_SECONDS) -> None:
        self._bus = bus
        self._metrics = metrics
        self._look_seconds = look_seconds
        self._lags: Sequence[ReaderLag] = ()

    def of(self, service: str) -> tuple[TopicLag, ...]:
        """Return the lag of a service by topic."""
        by_topic: defaultdict[str, list[ReaderLag]] = defaultdict(list)
        for lag in self._lags:
            if lag.reader == service:
                by_topic[lag.topic].append(lag)
        return tuple(_summed(topic, lags) for topic, lags in sorted(by_topic.items()))

    async def watch(self) -> None:
        """Measure for ever, also through outages of the bus."""
        while True:
            try:
                await self.look()
            except EvenerError as away:
                log.info("lag_not_measured", error=str(away))
            await asyncio.sleep(self._look_seconds)

    async def look(self) -> None:
        """Measure now. Raises BusError, BusUnreachable."""
        found = await self._bus.lags()
        for gone in _places(self._lags) - _places(found):
            self._metrics.lag_records.remove(*gone)
        for lag in found:
            self._metrics.lag_records.labels(lag.reader, lag.topic, str(lag.partition)).set(lag.records)
        self._lags = found


def _places(lags: Iterable[ReaderLag]) -> set[tuple[str, str, str]]:
    return {(lag.reader, lag.topic, str(lag.partition)) for lag in lags}


def _summed(topic: str, lags: Sequence[ReaderLag]) -> TopicLag:
    worst = max(lags, key=lambda lag: lag.records)
    return TopicLag(
        topic=topic,
        records=sum(lag.records for lag in lags),
        partitions=len(lags),
        worst_partition=worst.partition,
        worst_records=worst.records,
    )
