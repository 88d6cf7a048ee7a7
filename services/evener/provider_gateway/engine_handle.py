"""A checked engine, the slots that calls hold at it, and what keeps its calls waiting: its pauses and its silence."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from types import TracebackType
from typing import Final, Self

from msgspec import Struct, field

from evener.engines.port import ContextOverflow, Engine, EngineError, EngineFacts, EngineUnreachable, LogprobRule, WeightControl
from evener.engines.vllm_weights import WeightsOutOfReach
from evener.proto.fleet import EngineJoined
from evener.proto.relay import Waiting
from evener.runtime.interrupt import Interrupt

PAUSE_POLL_SECONDS: Final = 0.5
"""An engine that sends nothing for this long is asked whether it is paused, at this interval. Calls learn as often that a silence lasts."""

TellWaiting = Callable[[Waiting], None]
"""Tells a call that it was kept waiting."""


class Pauses:
    """The pauses of one engine. A pause counts from the last token before it to the first token after it.

    Evener never pauses an engine whose weights it does not control; whether somebody else does cannot be known.
    """

    def __init__(self, control: WeightControl | None, poll_seconds: float = PAUSE_POLL_SECONDS) -> None:
        self._control = control
        self._poll_seconds = poll_seconds
        self._calls: dict[TellWaiting, float] = {}
        """The calls that sample now, and when they began, by the loop's clock."""
        self._known_until = 0.0
        """Up to this time the engine sampled, or its calls were told that it did not."""
        self._paused = False
        self._watching: asyncio.Task[None] | None = None

    def heard(self) -> None:
        """Note that a token arrived."""
        now = asyncio.get_running_loop().time()
        if self._paused:
            self._tell(now)
        self._paused, self._known_until = False, now

    @contextmanager
    def told_to(self, tell: TellWaiting) -> Iterator[None]:
        """Tell a call of the pauses while it samples."""
        if self._control is not None and self._watching is None:
            self._watching = asyncio.create_task(self._watch(self._control))
        self._calls[tell] = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            del self._calls[tell]

    async def are_on(self) -> bool:
        """Return whether the engine is paused now, according to itself."""
        if self._control is None:
            return False
        with suppress(EngineError):
            return await self._control.paused()
        return False

    async def aclose(self) -> None:
        """Stop checking."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})
        if self._control is not None:
            await self._control.aclose()

    async def _watch(self, control: WeightControl) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._poll_seconds)
            if not self._calls or loop.time() - self._known_until < self._poll_seconds:
                continue
            asked = loop.time()
            try:
                paused = await control.paused()
            except WeightsOutOfReach:
                return
            except EngineError:  # its calls will hear of that by themselves
                continue
            if self._known_until <= asked:  # no token came meanwhile
                now = loop.time()
                if paused:
                    self._tell(now)
                self._paused, self._known_until = paused, now

    def _tell(self, now: float) -> None:
        for tell, began in self._calls.items():
            tell(Waiting(seconds=now - max(began, self._known_until)))


class Silence:
    """Tells a call of each silence of its engine that is longer than `seconds`, from the last token on, again and again while it lasts.

    A stuck engine, or one with a queue of its own, would otherwise spend the agent's time. Used as a context while the call is sampled.
    """

    def __init__(self, tell: TellWaiting, seconds: float, poll_seconds: float = PAUSE_POLL_SECONDS) -> None:
        self._tell = tell
        self._seconds = seconds
        self._poll_seconds = poll_seconds
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_long(self) -> bool:
        """Whether the engine has said nothing for longer than `seconds`."""
        return self._lasts() >= self._seconds

    def heard(self) -> None:
        """Note that a token arrived."""
        self._heard_at = self._loop.time()

    def __enter__(self) -> Self:
        self.heard()
        self._look()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _lasts(self) -> float:
        return self._loop.time() - self._heard_at

    def _look(self) -> None:
        if (lasts := self._lasts()) >= self._seconds:
            self._tell(Waiting(seconds=lasts))
        self._timer = self._loop.call_later(max(self._seconds - lasts, self._poll_seconds), self._look)


class RegisteredEngine(Struct, eq=False):
    """An engine as `fleet` has it, also while it is being checked."""

    joined: EngineJoined
    """Its last record: limits may change."""
    draining: bool = False


class EngineHandle(Struct, eq=False):
    """One checked engine, with its limit and the slots that calls hold at it."""

    registered: RegisteredEngine
    engine: Engine
    facts: EngineFacts
    rule: LogprobRule
    pauses: Pauses
    unfit: Mapping[str, str] = {}
    """For a frozen engine: the policies whose runs may not name it, and why."""
    share: Callable[[int], int] = lambda limit: limit
    """Returns this gateway's share of the limit of calls that the engine takes of all gateways."""
    taken: int = 0
    """The number of slots in use, one for each answer that is being sampled."""
    holders: set["EngineSlots"] = field(default_factory=set)
    silent_since: float | None = None
    """Since when it gets no calls because it does not answer, by the loop's clock. None: it answers."""
    failed_at: float = float("-inf")
    """When it last failed a call, by the same clock."""
    suspected: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is to be probed now."""

    @property
    def joined(self) -> EngineJoined:
        """The engine's record in `fleet`."""
        return self.registered.joined

    @property
    def draining(self) -> bool:
        """Whether it gets no more calls but finishes those that it has."""
        return self.registered.draining

    @property
    def usable(self) -> bool:
        """Whether it gets calls when it has room."""
        return self.silent_since is None and not self.draining

    @property
    def free(self) -> bool:
        """Whether it would get the next call."""
        return self.usable and self.taken < self.limit

    @property
    def limit(self) -> int:
        """The number of slots that this gateway may use."""
        return self.share(self.joined.max_concurrency)

    def avoid(self) -> None:
        """Note that it failed a call: other engines are preferred for a while."""
        self.failed_at = asyncio.get_running_loop().time()

    def suspect(self) -> None:
        """Note that it does not answer: it gets no calls until a probe succeeds."""
        self.avoid()
        self.silent_since = self.failed_at if self.silent_since is None else self.silent_since
        self.suspected.set()

    def give_up(self) -> None:
        """End what its calls do with their slots, so that they go elsewhere."""
        for slots in tuple(self.holders):
            slots.revoked.end(EngineUnreachable(f"engine {self.joined.engine_id} is gone"))


class EngineSlots(Struct, eq=False):
    """The slots that a call holds at an engine: one, and a further one for each further answer."""

    engine: EngineHandle
    waited_seconds: float
    """The time in the queue, which is not the agent's."""
    another: Callable[[], AbstractAsyncContextManager[None]]
    """Waits, in the same queue as all other calls, for one more slot at the engine: for a further answer that the call samples."""
    revoked: Interrupt = field(default_factory=Interrupt)
    """Ends the holder's block with an error."""

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Hold the slots for this block. An error of the block decides whether the engine is given other calls."""
        self.engine.holders.add(self)
        try:
            with self.revoked:
                yield
        except EngineUnreachable:
            self.engine.suspect()
            raise
        except EngineError as failed:
            if not isinstance(failed, ContextOverflow):
                self.engine.avoid()
            raise
        finally:
            self.engine.holders.discard(self)
