"""The trainer-bridge's configuration."""

from typing import Annotated

from msgspec import Meta

from evener.service.config import ServiceConfig


class Config(ServiceConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The configuration of the merging of groups, of how long they are remembered, and of weight updates."""

    batch: int = 64
    """The largest number of scored records in one transaction."""
    keep_ended_seconds: float = 7 * 24 * 3600.0
    """How long a group that has ended, and whose sessions were all seen, is remembered. It must be at least
    `work_retention_days`, or a record of the group that is read again would open it again."""
    load_seconds: Annotated[float, Meta(gt=0)] = 600.0
    """How long an engine may take to load new weights, including their canary. An engine that takes longer leaves the fleet, with an alarm.
    No group of its policy is delivered in that time."""
    followers: Annotated[int, Meta(ge=1)] = 32
    """How many readers of `/groups/follow` one process serves at a time. Each holds a few groups ahead, whether it reads them or not; one
    more is answered with 503."""
