"""The resources that all sessions of a runner share."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from evener.blobs.port import Blobs
from evener.runtime.byte_budget import ByteBudget
from evener.runtime.retry import Dependency
from evener.sandbox_runner.bundles import Bundles
from evener.sandbox_runner.config import Config
from evener.sandbox_runner.exchange import Limits
from evener.sandbox_runner.gateway_client import GatewayClient
from evener.sandbox_runner.recordings import Recordings
from evener.sandbox_runner.warm_pool import WarmPool
from evener.sandboxes.port import ChangeLimits, Sandboxes
from evener.service.auth import Secrets
from evener.service.events import EventLog
from evener.service.telemetry import Metrics
from evener.tokens.session import START_LIMIT_SECONDS


class RunnerTimings(Struct, frozen=True, kw_only=True):
    """Times of the runner that are not configuration keys. They are arguments of its opening, so that tests need not wait."""

    start_limit_seconds: float = START_LIMIT_SECONDS
    """An attempt that is to start later than this after its dispatch is left alone: its start would be void."""
    in_vain_seconds: float = 1.0
    """A harness that leaves a request of this age, while it waits for Evener, may have left for that reason."""


RUNNER_TIMINGS: Final = RunnerTimings()


class RunnerContext(Struct, frozen=True, kw_only=True, eq=False):
    """The runner's own resources, and those of its process."""

    config: Config
    runner_id: str
    events: EventLog
    bus: Dependency
    blobs: Blobs
    secrets: Secrets
    sandboxes: Mapping[str, Sandboxes]
    """The backends by name."""
    bundles: Bundles
    pool: WarmPool
    client: GatewayClient
    bodies: ByteBudget
    """The bytes of bodies that the relays hold together. Each has a share."""
    recordings: Recordings
    metrics: Metrics
    timings: RunnerTimings

    @property
    def limits_of_changes(self) -> ChangeLimits:
        """The limits on the changes that are kept of a session."""
        config = self.config
        return ChangeLimits(bytes=config.changes_bytes, entries=config.changes_entries, seconds=config.changes_seconds)

    @property
    def limits(self) -> Limits:
        """The relay's limits."""
        config = self.config
        return Limits(
            admission_seconds=config.admission_seconds,
            call_seconds=config.call_seconds,
            keep_alive_seconds=config.keep_alive_seconds,
            body_bytes=config.body_bytes,
            bodies=self.bodies,
            in_vain_seconds=self.timings.in_vain_seconds,
        )
