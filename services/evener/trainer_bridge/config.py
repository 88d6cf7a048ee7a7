"""The trainer-bridge's configuration."""

from evener.service.config import ServiceConfig


class Config(ServiceConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Groups, their merging, and what is kept of them."""

    batch: int = 64
    """Scored records that one transaction takes at most."""
    keep_ended_seconds: float = 7 * 24 * 3600.0
    """A group that ended and whose sessions were all seen is remembered for so long: at least the retention of
    `trajectories.scored`."""
