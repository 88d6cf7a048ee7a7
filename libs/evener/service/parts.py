"""What a service is handed, and what it hands back. `host` runs one or all of them; nothing else knows how they are started."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeVar

from msgspec import Struct
from prometheus_client import CollectorRegistry
from starlette.routing import BaseRoute

from evener.blobs.port import Blobs
from evener.bus.port import Bus
from evener.proto.fleet import Heartbeat
from evener.service.auth import Secrets


class Parts(Struct, frozen=True, kw_only=True, eq=False):
    """Shared by all services of a process."""

    bus: Bus
    blobs: Blobs
    secrets: Secrets
    registry: CollectorRegistry
    instance_id: str
    """Of this process; a service's own is `<instance_id>-<service>`."""
    boot_id: str
    address: str
    """Base URL under which this process's HTTP endpoints are reached."""
    store_usable: Callable[[], bool] = lambda: True
    """Whether the blob store can be used now: while it cannot, no work is taken that needs it."""


class Service(Struct, frozen=True, kw_only=True, eq=False):
    """A running service, as the host sees it."""

    name: str
    """Its folder's name."""
    routes: Sequence[BaseRoute] = ()
    """Mounted at the root; paths are unique across services, so that all six share one port in `evener up`."""
    run: Callable[[], Awaitable[None]]
    """Serves until cancelled. Returning or raising is a crash: the host restarts the service, with a back-off."""
    ready: Callable[[], dict[str, bool]]
    """Named conditions of readiness; all must be true."""
    heartbeat: Callable[[], Heartbeat]
    """What the host writes to `fleet` every two seconds."""
    drain: Callable[[], Awaitable[None]]
    """SIGTERM: stop taking new work and finish or hand back what is open."""


Config_contra = TypeVar("Config_contra", contravariant=True)


class OpenService(Protocol[Config_contra]):
    """`service.open_service` of every service: wires concrete adapters, yields the service, closes in reverse."""

    def __call__(self, config: Config_contra, parts: Parts) -> AbstractAsyncContextManager[Service]: ...
