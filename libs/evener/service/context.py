"""The objects that a service gets, and those that it returns. Only `host` knows how services are started, alone or together."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

from msgspec import Struct, field
from prometheus_client import CollectorRegistry
from starlette.routing import BaseRoute

from evener.blobs.failing import FailingObjects
from evener.blobs.port import Blobs
from evener.blobs.waited import BLOB_TIMINGS, BlobTimings, Waited
from evener.bus.port import Bus
from evener.proto.fleet import Heartbeat, PolicyFingerprint, RunnerLeases, TopicLag
from evener.service.auth import Secrets
from evener.service.fleet_feed import FleetFeed


async def nobody_else(_policies: Sequence[PolicyFingerprint]) -> None:
    """Agree with everything: there is no other process."""


class ServiceContext(Struct, frozen=True, kw_only=True, eq=False):
    """The resources that all services of a process share."""

    bus: Bus
    fleet: FleetFeed
    """What `fleet` says, read once for all services of the process."""
    blobs: Blobs
    secrets: Secrets
    registry: CollectorRegistry
    instance_id: str
    """The instance id of this process. A service's own is `<instance_id>-<service>`."""
    boot_id: str
    address: str
    """The base URL of this process's HTTP endpoints."""
    store_usable: Callable[[], bool] = lambda: True
    """Whether the blob store can be used now. While it cannot, no work that needs it is taken."""
    failing_objects: FailingObjects | None = None
    """The objects that the blob store does not give although it gives others. None: unknown."""
    blob_timings: BlobTimings = BLOB_TIMINGS
    agree: Callable[[Sequence[PolicyFingerprint]], Awaitable[None]] = nobody_else
    """Called by a gateway before it serves. Raises NotShared if another living one renders otherwise."""
    alone: bool = True
    """Whether the service has this process to itself. In `evener up` it has not: all services stop at the same time."""
    lag: Callable[[str], tuple[TopicLag, ...]] = lambda _: ()
    """How far a service of this process was behind when that was last measured."""

    def waiting_blobs(self, *, put_seconds: float | None = None) -> Waited:
        """Return the blob store for readers of a stream. It waits as long as the store is unavailable, in `put` at most `put_seconds`."""
        return Waited(self.blobs, put_seconds=put_seconds, timings=self.blob_timings, failing=self.failing_objects)

    def answering_blobs(self) -> Waited:
        """Return the blob store for endpoints. It waits a few seconds for a store that is unavailable."""
        return Waited(self.blobs, self.blob_timings.answer_seconds, timings=self.blob_timings, failing=self.failing_objects)

    def heartbeat(self, service: str, *, stopping: bool = False, **fields: Any) -> Heartbeat:
        """Return the present heartbeat of a service of this process. `fields` are the further ones of Heartbeat that it has."""
        return Heartbeat(
            instance_id=f"{self.instance_id}-{service}",
            service=service,
            address=self.address,
            boot_id=self.boot_id,
            lag=self.lag(service),
            stopping=stopping,
            at=time.time(),
            **fields,
        )


class Service(Struct, frozen=True, kw_only=True, eq=False):
    """A running service, as the host sees it."""

    name: str
    """The name of its folder."""
    routes: Sequence[BaseRoute] = ()
    """The routes, mounted at the root. Paths are unique across services, so that all six share one port in `evener up`."""
    run: Callable[[], Awaitable[None]]
    """Serves until cancelled. If it returns or raises, it has crashed, and the host restarts the service after a pause."""
    ready: Callable[[], dict[str, bool]]
    """The named conditions of readiness, which must all be true."""
    warnings: Callable[[], Sequence[str]] = tuple
    """Warnings for the operator although the service is ready."""
    heartbeat: Callable[[], Heartbeat]
    """The heartbeat that the host writes to `fleet` every two seconds."""
    leases: Callable[[], RunnerLeases] | None = None
    """The leases that the host writes to `leases` with each heartbeat. None: the service runs no sessions."""
    heartbeat_due: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by the service when its heartbeat says something new, which the host then writes at once."""
    drain: Callable[[], Awaitable[None]]
    """Called on SIGTERM: stops taking work, and finishes or hands back what is open."""


Config_contra = TypeVar("Config_contra", contravariant=True)


class OpenService(Protocol[Config_contra]):
    """The function `open_service` of every service: wires concrete adapters, yields the service, and closes in reverse order."""

    def __call__(self, config: Config_contra, context: ServiceContext) -> AbstractAsyncContextManager[Service]: ...
