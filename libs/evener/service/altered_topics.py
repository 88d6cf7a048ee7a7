"""Notices that somebody added partitions to a topic while this process runs.

The process continues with the partitions that the deployment agreed on.
"""

import asyncio
from typing import Final

import structlog

from evener.bus.port import Bus
from evener.proto.errors import EvenerError
from evener.service.telemetry import Metrics

TOPICS_POLL_SECONDS: Final = 5.0
"""The interval of the checks."""
MEND: Final = "all records stay in the first ones; to start a process again, set partitions to the old number (docs/bus.md)"

log = structlog.get_logger()


class AlteredTopics:
    """The topics with more partitions than this process uses."""

    def __init__(self, bus: Bus, metrics: Metrics, *, look_seconds: float = TOPICS_POLL_SECONDS) -> None:
        self._bus = bus
        self._metrics = metrics
        self._look_seconds = look_seconds
        self._surplus: dict[str, int] = {}

    def warnings(self) -> list[str]:
        """Return a line for each topic that was altered."""
        return [f"topic {topic} has {count} partitions now: {MEND}" for topic, count in sorted(self._surplus.items())]

    async def watch(self) -> None:
        """Look for ever, also through outages of the bus."""
        while True:
            try:
                found = await self._bus.surplus()
            except EvenerError as away:
                log.info("topics_not_seen", error=str(away))
            else:
                self._note(found)
            await asyncio.sleep(self._look_seconds)

    def _note(self, found: dict[str, int]) -> None:
        for topic, count in found.items():
            if self._surplus.get(topic) != count:
                log.error("topic_altered", topic=topic, partitions=count, mend=MEND)
        self._surplus = found
        self._metrics.topics_altered.set(len(found))
