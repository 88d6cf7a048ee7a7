"""What all sessions of a runner share."""

from msgspec import Struct

from evener.blobs.port import Blobs
from evener.sandbox_runner.bundles import Bundles
from evener.sandbox_runner.config import Config
from evener.sandbox_runner.exchange import Limits
from evener.sandbox_runner.recordings import Recordings
from evener.sandbox_runner.relay_client import GatewayClient
from evener.sandboxes.port import ChangeLimits, Sandboxes
from evener.service.auth import Secrets
from evener.service.events import EventLog
from evener.service.telemetry import Metrics


class Site(Struct, frozen=True, kw_only=True, eq=False):
    """The runner's own parts, and those of its process."""

    config: Config
    runner_id: str
    events: EventLog
    blobs: Blobs
    secrets: Secrets
    sandboxes: Sandboxes
    bundles: Bundles
    client: GatewayClient
    recordings: Recordings
    metrics: Metrics

    @property
    def limits_of_changes(self) -> ChangeLimits:
        """What of a session's changes is kept."""
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
        )
