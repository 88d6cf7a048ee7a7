"""A checked engine, and the leases that calls hold on it."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager

from msgspec import Struct, field

from evener.engines.port import ContextOverflow, Engine, EngineError, EngineFacts, EngineUnreachable, LogprobRule
from evener.proto.fleet import EngineJoined
from evener.provider_gateway.pauses import Pauses
from evener.runtime.interrupt import Interrupt


class RegisteredEngine(Struct, eq=False):
    """An engine as `fleet` has it, also while it is being checked."""

    joined: EngineJoined
    """Its last record: limits may change."""
    draining: bool = False


class EngineHandle(Struct, eq=False):
    """One checked engine, with its limit and the leases that calls hold on it."""

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
    """The number of places in use, one for each answer that is being sampled."""
    leases: set["EngineLease"] = field(default_factory=set)
    silent_since: float | None = None
    """Since when it gets no calls because it does not answer, by the loop's clock. None: it answers."""
    failed_at: float = float("-inf")
    """When it last failed a call, by the same clock."""
    suspected: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is to be probed now."""

    @property
    def joined(self) -> EngineJoined:
        """Its record in `fleet`."""
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
        """The number of places that this gateway may use."""
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
        """End the leases on it, so that their calls go elsewhere."""
        for lease in tuple(self.leases):
            lease.revoked.end(EngineUnreachable(f"engine {self.joined.engine_id} is gone"))


class EngineLease(Struct, eq=False):
    """A call's place at an engine."""

    engine: EngineHandle
    waited_seconds: float
    """The time in the queue, which is not the agent's."""
    another: Callable[[], AbstractAsyncContextManager[None]]
    """Waits, in the same queue as all other calls, for one more place at the engine: for a further answer that the call samples."""
    revoked: Interrupt = field(default_factory=Interrupt)
    """Ends the holder's block with an error."""

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lease for this block. An error of the block decides whether the engine is given other calls."""
        self.engine.leases.add(self)
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
            self.engine.leases.discard(self)
