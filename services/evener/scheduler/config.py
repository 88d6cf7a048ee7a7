"""The scheduler's configuration."""

from typing import Annotated

from msgspec import Meta

from evener.service.config import ServiceConfig


class Config(ServiceConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tasks, leases and admission."""

    name: str = "main"
    """The name of this scheduler. Of several of one name one is active, the others stand by, and the next continues where it stopped."""
    lease_seconds: Annotated[float, Meta(ge=1)] = 10.0
    """An attempt is lost when its runner's heartbeats have not mentioned it for this time. Heartbeats come every 2 seconds."""
    tick_seconds: Annotated[float, Meta(gt=0)] = 1.0
    """How often leases and deadlines are checked."""
    quarantine_losses: Annotated[int, Meta(ge=1)] = 3
    """A runner that loses the sandboxes of this many sessions in a row gets none for a while, then one at a time until one has run."""
    quarantine_seconds: Annotated[float, Meta(gt=0)] = 30.0
    """How long it gets none at first. Each further pause is twice as long, up to 15 minutes."""
    hold_behind_records: Annotated[int, Meta(ge=0)] = 200_000
    """No session starts while the reconstructors are this many records of `sessions` behind, until they are half as many. 0: no limit."""
    hold_behind_sessions: Annotated[int, Meta(ge=0)] = 20_000
    """No session starts while the evaluators, or the bridges, are this many sessions behind, until they are half as many. 0: no limit."""
    run_retention_days: Annotated[float, Meta(gt=0)] | None = None
    """A run is deleted this many days after its last task has ended. Keep it below `log_retention_days`, or blobs that only trimmed records
    named stay for ever. None: runs stay until somebody deletes them."""
    blob_rest_seconds: Annotated[float, Meta(ge=0)] = 3600.0
    """Blobs of a deleted run are removed when nobody has put them for this time. Less than an hour is safe only while nothing runs."""
    forget_seconds: Annotated[float, Meta(ge=60)] = 600.0
    """An instance that sent no heartbeat for this time leaves `fleet`. One that comes back is there with its next heartbeat."""
