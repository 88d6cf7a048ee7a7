"""The scheduler's configuration."""

from typing import Annotated

from msgspec import Meta

from evener.service.config import ServiceConfig


class Config(ServiceConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tasks, leases and admission."""

    name: str = "main"
    """The name of this scheduler. A scheduler that starts under the same name continues where the last one stopped."""
    lease_seconds: Annotated[float, Meta(ge=1)] = 10.0
    """An attempt is lost when its runner's heartbeats have not mentioned it for this time. Heartbeats come every 2 seconds."""
    tick_seconds: Annotated[float, Meta(gt=0)] = 1.0
    """How often leases and deadlines are checked."""
