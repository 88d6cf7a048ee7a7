"""A checked engine, and the leases that calls hold on it."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from types import MappingProxyType

from evener.engines.port import ContextOverflow, Engine, EngineError, EngineFacts, EngineUnreachable, LogprobRule
from evener.proto.fleet import EngineJoined
from evener.provider_gateway.pauses import Pauses
from evener.runtime.interrupt import Interrupt


class RegisteredEngine:
    """An engine as `fleet` has it, also while it is being checked."""

    def __init__(self, joined: EngineJoined) -> None:
        self.joined = joined
        """Its last record: limits may change."""
        self.draining = False


class EngineHandle:
    """One checked engine, with its limit and the leases that calls hold on it."""

    def __init__(
        self,
        registered: RegisteredEngine,
        engine: Engine,
        facts: EngineFacts,
        rule: LogprobRule,
        pauses: Pauses,
        *,
        unfit: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.engine = engine
        self.facts = facts
        self.rule = rule
        self.unfit = unfit
        """For a frozen engine: the policies whose runs may not name it, and why."""
        self.pauses = pauses
        self.taken = 0
        """The number of places in use, one for each answer that is being sampled."""
        self.leases: set[EngineLease] = set()
        self.silent_since: float | None = None
        """Since when it gets no calls because it does not answer, by the loop's clock. None: it answers."""
        self.failed_at = float("-inf")
        """When it last failed a call, by the same clock."""
        self.suspected = asyncio.Event()
        """Set when it is to be probed now."""
        self._registered = registered

    @property
    def joined(self) -> EngineJoined:
        """Its record in `fleet`."""
        return self._registered.joined

    @property
    def draining(self) -> bool:
        """Whether it gets no more calls but finishes those that it has."""
        return self._registered.draining

    @property
    def usable(self) -> bool:
        """Whether it gets calls when it has room."""
        return self.silent_since is None and not self.draining

    @property
    def free(self) -> bool:
        """Whether it would get the next call."""
        return self.usable and self.taken < self.joined.max_concurrency

    def avoid(self) -> None:
        """Note that it failed a call: other engines are preferred for a while."""
        self.failed_at = asyncio.get_running_loop().time()

    def suspect(self) -> None:
        """Note that it does not answer: it gets no calls until a probe succeeds."""
        self.avoid()
        self.silent_since = self.failed_at if self.silent_since is None else self.silent_since
        self.suspected.set()

    def give_up(self) -> None:
        """End the leases on it, so that their calls go elsewhere."""
        for lease in tuple(self.leases):
            lease.revoke(EngineUnreachable(f"engine {self.joined.engine_id} is gone"))


class EngineLease:
    """A call's place at an engine. `another` adds one for each further answer that the call samples."""

    def __init__(
        self, engine: EngineHandle, waited_seconds: float, another: Callable[[EngineHandle], AbstractAsyncContextManager[None]]
    ) -> None:
        self.engine = engine
        self.waited_seconds = waited_seconds
        """The time in the queue, which is not the agent's."""
        self._another = another
        self._interrupt = Interrupt()

    def another(self) -> AbstractAsyncContextManager[None]:
        """Wait for one more place at the engine, in the same queue as all other calls."""
        return self._another(self.engine)

    def revoke(self, why: EngineUnreachable) -> None:
        """End the holder's block with an error."""
        self._interrupt.end(why)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lease for this block. An error of the block decides whether the engine is given other calls."""
        self.engine.leases.add(self)
        try:
            with self._interrupt:
                yield
        except EngineUnreachable:
            self.engine.suspect()
            raise
        except EngineError as failed:
            if not isinstance(failed, ContextOverflow):
                self.engine.avoid()
            raise
        finally:
            self.engine.leases.discard(self)
