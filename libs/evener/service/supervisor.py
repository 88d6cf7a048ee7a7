"""Keeps one service running: opens it, restarts it after a pause when it crashes, and sends its heartbeats."""

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

import structlog
from msgspec import Struct
from structlog.contextvars import bind_contextvars

from evener.proto.errors import EvenerError, Hopeless, Recoverable
from evener.proto.fleet import Heartbeat
from evener.proto.topics import Topic
from evener.runtime import faults
from evener.runtime.backoff import Backoff
from evener.service.config import ServiceConfig
from evener.service.context import OpenService, Service, ServiceContext
from evener.service.events import EventLog
from evener.service.telemetry import metrics

RESTART: Final = Backoff(0.5, 10.0)
"""The pauses before a crashed service, or an engine that Evener started, is restarted."""
RAPID_SECONDS: Final = 30.0
"""A service that ran for longer than this starts its count of crashes again."""
MAX_RAPID_CRASHES: Final = 8

log = structlog.get_logger()


class CrashLoop(EvenerError):
    """The service fails whenever it is started. Its log lines before this one say why; mend that and start again."""


class Stopped(EvenerError):
    """The service's task ended although it was not told to stop."""


class Wanted(Struct, frozen=True, kw_only=True, eq=False):
    """A service to run."""

    name: str
    """The name of its folder."""
    config: ServiceConfig
    open: OpenService[ServiceConfig]


class Supervisor:
    """Owns one service of the process. `service` is None while it is not open."""

    def __init__(
        self,
        wanted: Wanted,
        context: ServiceContext,
        changed: Callable[[], None],
        marked: Callable[[Heartbeat], Heartbeat] = lambda beat: beat,
        *,
        heartbeat_seconds: float = 2.0,
        restart: Backoff = RESTART,
    ) -> None:
        """`marked`: adds the fields of the process to the service's heartbeats."""
        self.name = wanted.name
        self.service: Service | None = None
        self.trouble = ""
        """The reason of the last crash. Empty: there was none."""
        self._wanted = wanted
        self._context = context
        self._events = EventLog(context.bus, context.blobs)
        self._changed = changed
        self._marked = marked
        self._heartbeat_seconds = heartbeat_seconds
        self._restart = restart
        self._opened = False
        self._stopping = False

    def conditions(self) -> dict[str, bool]:
        """Return the service's named conditions of readiness."""
        return {"running": False} if self.service is None else {"running": True, **self.service.ready()}

    async def run(self) -> None:
        """Keep the service running until cancelled. Raises what its first opening raises, CrashLoop (neither if Recoverable), Hopeless."""
        bind_contextvars(service=self.name)  # this runs in a task of its own, as do all that it starts
        crashes = 0
        while True:
            began = time.monotonic()
            try:
                await self._run_once()
            except Hopeless:
                raise
            except Exception as error:  # the one place where a service's failure is caught
                if not self._opened and not isinstance(error, Recoverable):
                    raise
                crashes = 1 if time.monotonic() - began > RAPID_SECONDS else crashes + 1
                self._note(error, crashes)
            await asyncio.sleep(self._restart.seconds(crashes))

    async def drain(self) -> None:
        """Ask the service to stop taking work, and to finish or hand back what is open. `fleet` learns of it at once, and of the end."""
        bind_contextvars(service=self.name)
        self._stopping = True
        service = self.service
        if service is not None:
            await asyncio.gather(service.drain(), self._beat(service))  # or handed-back sessions would come to this runner again
            await self._beat(service)

    async def _run_once(self) -> None:
        async with self._wanted.open(self._wanted.config, self._context) as service:
            self._opened = True
            self._show(service)
            try:
                await self._serve(service)
            finally:
                self._show(None)

    async def _serve(self, service: Service) -> None:
        """Run the service and its heartbeats; always raises."""
        running = asyncio.ensure_future(service.run())
        beating = asyncio.ensure_future(self._beat_for_ever(service))
        faults.running(self.name, running)
        try:
            await asyncio.wait({running, beating}, return_when=asyncio.FIRST_COMPLETED)
            if self._stopping:  # drained: open for the requests under way, until the host closes it
                await asyncio.Event().wait()
        finally:
            failed = [task for task in (running, beating) if task.done()]
            for task in (running, beating):
                task.cancel()
            await asyncio.gather(running, beating, return_exceptions=True)
        for task in failed:
            if not task.cancelled():
                task.result()
        msg = f"{self.name} was cancelled or returned"
        raise Stopped(msg)

    async def _beat_for_ever(self, service: Service) -> None:
        while True:
            service.heartbeat_due.clear()
            await self._beat(service)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._heartbeat_seconds):
                    await service.heartbeat_due.wait()

    async def _beat(self, service: Service) -> None:
        beat = self._marked(service.heartbeat())
        try:
            records = [await self._events.outgoing(Topic.FLEET, beat.instance_id, beat)]
            if service.leases is not None:
                records.append(await self._events.outgoing(Topic.LEASES, beat.instance_id, service.leases()))
            await self._context.bus.send(records)
        except EvenerError as error:
            log.warning("heartbeat_not_sent", error=str(error))

    def _show(self, service: Service | None) -> None:
        self.service = service
        self._changed()

    def _note(self, error: Exception, crashes: int) -> None:
        self.trouble = str(error)
        self._changed()
        metrics(self._context.registry).crashes.labels(self.name).inc()
        log.error("service_crashed", crashes=crashes, error=str(error), exc_info=not isinstance(error, EvenerError))
        if crashes >= MAX_RAPID_CRASHES and not isinstance(error, Recoverable):  # a full disk gets room again
            msg = f"{self.name} failed {crashes} times in a row, last: {type(error).__name__}: {error}"
            raise CrashLoop(msg) from error


def not_open(supervisors: Iterable[Supervisor]) -> tuple[str, ...]:
    """Return the names of the services that are not open, with each reason once: a full disk is one reason, whatever it stops."""
    by_trouble: dict[str, list[str]] = {}
    for one in supervisors:
        if one.service is None:
            by_trouble.setdefault(one.trouble, []).append(one.name)
    return tuple(", ".join(names) + (f" ({trouble})" if trouble else "") for trouble, names in by_trouble.items())
