"""Sandboxes that are prepared before a session comes: a bounded number, of the kinds that queued sessions need.

Nothing of a session is in a warm sandbox: neither its files nor its relay, and nothing has run in it. A session that takes one is its only
user, so that a sandbox is never used twice.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Final

import structlog
from msgspec import Struct

from evener.proto.errors import EvenerError
from evener.proto.fleet import QueuedSessions, WarmSandboxes
from evener.proto.sandbox import SandboxKind
from evener.runtime.tasks import Tasks
from evener.sandbox_runner.core import NoStart
from evener.sandboxes.port import Sandbox
from evener.service.telemetry import Metrics

USABLE_SECONDS: Final = 5.0
"""A warm sandbox that has not said within this time that it is usable is not used."""
LOOK_SECONDS: Final = 1.0
"""The longest time between two looks at what is there."""

Make = Callable[[QueuedSessions, AsyncExitStack], Awaitable[Sandbox]]
"""Opens a sandbox of the kind on the stack, and warms it. Raises NoStart, EvenerError, OSError."""

log = structlog.get_logger()


class PoolLimits(Struct, frozen=True, kw_only=True):
    """How much is prepared."""

    sandboxes: int
    """The number of warm sandboxes, including those that are being prepared. 0: none."""
    preparing: int
    """The number that are prepared at a time."""
    rest_seconds: float
    """How long a sandbox is kept that no queued session needs, unless its place is needed."""
    failed_seconds: float = 30.0
    """How long no sandbox of a kind is prepared after one could not be."""


class WarmSandbox(Struct, eq=False):
    """A sandbox that waits for its session."""

    sandbox: Sandbox
    stack: AsyncExitStack
    """Closing it removes the sandbox."""
    needed_at: float
    """When a queued session needed it last, by a monotonic clock."""


class WarmPool:
    """The warm sandboxes of a runner."""

    def __init__(self, limits: PoolLimits, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._metrics = metrics
        self._clock = clock
        self._wanted: Sequence[QueuedSessions] = ()
        self._ready: dict[SandboxKind, deque[WarmSandbox]] = {}
        self._making: Counter[SandboxKind] = Counter()
        self._paused: dict[SandboxKind, float] = {}
        """Until when nothing of a kind is prepared, because it failed."""
        self._closing: set[asyncio.Task[None]] = set()
        self._stopped = False
        self._news = asyncio.Event()
        self._slots = asyncio.Semaphore(limits.preparing)

    def want(self, queued: Sequence[QueuedSessions]) -> None:
        """Prepare for these sessions from now on, for the first ones first."""
        self._wanted = () if self._stopped else queued
        self._news.set()

    def stop(self) -> None:
        """Prepare nothing more, and remove what nobody has taken."""
        self._stopped = True
        self.want(())

    def ready(self) -> tuple[WarmSandboxes, ...]:
        """Return what is warm, for `fleet`."""
        return tuple(WarmSandboxes(kind=kind, ready=len(there)) for kind, there in self._ready.items() if there)

    async def take(self, kind: SandboxKind, stack: AsyncExitStack) -> Sandbox | None:
        """Hand a warm sandbox over to a session, on whose stack it is closed. None: none is there that can be used."""
        while there := self._ready.get(kind):
            warm = there.popleft()
            stack.push_async_callback(warm.stack.aclose)
            self._changed()
            if await _is_usable(warm.sandbox):
                return warm.sandbox
            self._metrics.warm_sandboxes_lost.inc()
            log.warning("warm_sandbox_lost", backend=kind.backend, harness=kind.harness)
        return None

    async def run(self, make: Make) -> None:
        """Prepare and remove sandboxes until cancelled. What is there then is removed."""
        try:
            async with Tasks() as tasks:
                while True:
                    self._news.clear()
                    self._discard()
                    for queued in self._missing():
                        self._making[queued.kind] += 1
                        tasks.create_task(self._prepare(queued, make))
                    self._show()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_SECONDS):
                            await self._news.wait()
        finally:
            self.stop()
            self._discard()
            await asyncio.shield(asyncio.gather(*self._closing, return_exceptions=True))

    async def _prepare(self, queued: QueuedSessions, make: Make) -> None:
        """Make one sandbox. One that cannot be made is told, and left to the sessions that need it: they end with the reason."""
        kind, stack = queued.kind, AsyncExitStack()
        try:
            async with self._slots:
                began = self._clock()
                sandbox = await make(queued, stack)
                self._metrics.warming_seconds.observe(self._clock() - began)
        except BaseException as cause:
            await asyncio.shield(stack.aclose())
            if not isinstance(cause, NoStart | EvenerError | OSError):
                raise
            self._paused[kind] = self._clock() + self._limits.failed_seconds
            log.warning("not_warmed", backend=kind.backend, harness=kind.harness, task=queued.task.name, reason=str(cause))
        else:
            self._ready.setdefault(kind, deque()).append(WarmSandbox(sandbox, stack, self._clock()))
        finally:
            self._making -= Counter([kind])
            self._changed()

    def _targets(self) -> Counter[SandboxKind]:
        """Return how many sandboxes of each kind there should be: one of each kind in turn, up to the limit."""
        now = self._clock()
        left = {queued.kind: queued.sessions for queued in self._wanted if self._paused.get(queued.kind, 0.0) <= now}
        targets: Counter[SandboxKind] = Counter()
        while left and targets.total() < self._limits.sandboxes:
            for kind in list(left)[: self._limits.sandboxes - targets.total()]:
                targets[kind] += 1
                left[kind] -= 1
                if not left[kind]:
                    del left[kind]
        return targets

    def _missing(self) -> list[QueuedSessions]:
        """Return the sessions for each of which one sandbox is to be made now."""
        targets = self._targets()
        room = self._limits.sandboxes - self._making.total() - sum(map(len, self._ready.values()))
        lacking = [
            queued
            for queued in self._wanted
            for _ in range(targets[queued.kind] - self._making[queued.kind] - len(self._ready.get(queued.kind, ())))
        ]
        return lacking[:room]

    def _discard(self) -> None:
        """Remove what was not needed for a while; at once, what keeps others from being prepared, and everything after the stop."""
        now, targets = self._clock(), self._targets()
        spare: list[tuple[float, SandboxKind]] = []
        for kind, there in self._ready.items():
            for number, warm in enumerate(there):
                if number < targets[kind]:
                    warm.needed_at = now
                else:
                    spare.append((warm.needed_at, kind))
        total = sum(map(len, self._ready.values())) + self._making.total()
        lacking = sum(max(0, count - self._making[kind] - len(self._ready.get(kind, ()))) for kind, count in targets.items())
        in_the_way = max(0, total + lacking - self._limits.sandboxes)
        for number, (needed_at, kind) in enumerate(sorted(spare, key=lambda one: one[0])):
            if self._stopped or number < in_the_way or now - needed_at >= self._limits.rest_seconds:
                self._close(self._ready[kind].pop())

    def _close(self, warm: WarmSandbox) -> None:
        closing = asyncio.create_task(_closed(warm))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _changed(self) -> None:
        self._news.set()
        self._show()

    def _show(self) -> None:
        self._metrics.warm_sandboxes.labels("ready").set(sum(map(len, self._ready.values())))
        self._metrics.warm_sandboxes.labels("preparing").set(self._making.total())


async def _is_usable(sandbox: Sandbox) -> bool:
    try:
        async with asyncio.timeout(USABLE_SECONDS):
            return await sandbox.usable()
    except (EvenerError, OSError) as cause:  # TimeoutError is an OSError
        log.warning("warm_sandbox_not_checked", reason=str(cause))
        return False


async def _closed(warm: WarmSandbox) -> None:
    try:
        await warm.stack.aclose()
    except (EvenerError, OSError) as cause:
        log.warning("warm_sandbox_not_removed", reason=str(cause), mend="the next start tries again")
