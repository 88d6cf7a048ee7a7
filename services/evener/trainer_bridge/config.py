"""The trainer-bridge's configuration."""

from typing import Annotated

from msgspec import Meta

from evener.service.config import ServiceConfig


class Config(ServiceConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Groups, their merging, and what is kept of them."""

    batch: int = 64
    """Scored records that one transaction takes at most."""
    keep_ended_seconds: float = 7 * 24 * 3600.0
    """A group that ended and whose sessions were all seen is remembered for so long: at least the retention of
    `trajectories.scored`."""
    load_seconds: Annotated[float, Meta(gt=0)] = 600.0
    """What an engine may take for new weights, their canary included. One that takes longer leaves the fleet, with an alarm; so long at
    most no group of its policy is delivered."""
