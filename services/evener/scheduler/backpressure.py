"""Holds new sessions back while the services after the gateway are too far behind. Sessions that have begun continue.

Without it a whole run would go on sampling behind a slow grader or a stopped bridge: its tokens grow stale, and the log grows.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

import structlog
from msgspec import Struct

from evener.proto.fleet import Heartbeat
from evener.service.telemetry import Metrics

RESUME_SHARE: Final = 0.5
"""The share of its limit to which a service must fall, so that sessions do not start and stop with every heartbeat."""

log = structlog.get_logger()


class StageLimit(Struct, frozen=True):
    """A service that new sessions may have to wait for."""

    service: str
    limit: int
    """The records that its instances together may be behind. 0: any number."""
    unit: str


class Backpressure:
    """The services that are too far behind. While no instance of a service is alive, the last decision about it stands."""

    def __init__(self, records: int, sessions: int, metrics: Metrics) -> None:
        """`records` and `sessions`: the limits, in records of `sessions` for the reconstructors, in sessions for the others."""
        self._stages = (
            StageLimit("reconstructor", records, "records"),
            StageLimit("evaluator", sessions, "sessions"),
            StageLimit("trainer_bridge", sessions, "sessions"),
        )
        self._metrics = metrics
        self._behind: dict[StageLimit, int] = {}

    @property
    def reason(self) -> str:
        """Why no new session starts. Empty: nothing holds them."""
        told = (
            f"{stage.service} is {behind} {stage.unit} behind, over its limit of {stage.limit}" for stage, behind in self._behind.items()
        )
        return "; ".join(told)

    def look(self, living: Iterable[Heartbeat]) -> bool:
        """Decide anew by the heartbeats of living instances. Return whether a service was added or removed."""
        behind: Counter[str] = Counter()
        for beat in living:
            behind[beat.service] += sum(lag.records for lag in beat.lag)
        before = set(self._behind)
        for stage in self._stages:
            if stage.limit and stage.service in behind:
                self._decide(stage, behind[stage.service])
        return set(self._behind) != before

    def _decide(self, stage: StageLimit, behind: int) -> None:
        held = stage in self._behind
        if behind > (stage.limit * RESUME_SHARE if held else stage.limit):
            self._behind[stage] = behind
            if not held:
                log.warning("sessions_held", behind=stage.service, by=behind, limit=stage.limit)
        elif held:
            del self._behind[stage]
            log.info("sessions_go_on", behind=stage.service, by=behind)
        self._metrics.admission_held.labels(stage.service).set(stage in self._behind)
