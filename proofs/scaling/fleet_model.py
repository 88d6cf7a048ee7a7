"""Gateways, partitions and sessions in simulated time, with the group protocol's own division of the partitions.

A gateway is one thread: calls wait for it in order. A call then takes the engine's time. What happens at a gateway's death, and when one
joins, follows docs/bus.md: the group notices a death after its session time-out; a partition that moves between the living is handed over
when its open calls have ended, and its new calls wait.
"""

import random
from collections.abc import Callable
from typing import Final

from msgspec import Struct
from proofs.scaling.clock import Clock
from proofs.scaling.sizing import Costs, Load

from evener.bus.kafka_assignor import Claim, divide
from evener.bus.records import partition_for

SESSION_TIMEOUT_SECONDS: Final = 6.0
TAKE_OVER_SECONDS: Final = 1.0
"""Fencing, reading the partition to its end, and telling the relays."""
SPREAD: Final = (0.5, 1.5)
"""The range of single times, as multiples of their mean."""
SEED: Final = 11


class Session(Struct, eq=False):
    """A session on its way through its calls."""

    partition: int
    calls_left: int
    over: Callable[[], None]
    asked_at: float = 0.0
    begun_at: float = 0.0
    """When its open call reached the engine."""
    ends_at: float = 0.0
    version: int = 0
    """Rises when its open call is lost, so that its end no longer counts."""


class Moves(Struct, frozen=True, kw_only=True):
    """The cost of a change of the members."""

    what: str
    needed: int
    made: int
    longest_wait_seconds: float
    """The time until the last of its partitions was served again."""


class FleetModel:
    """All gateways, and the calls of all sessions."""

    def __init__(self, clock: Clock, load: Load, costs: Costs, gateways: int) -> None:
        self.waits: list[float] = []
        """What each call waited for its gateway's thread or for an owner, in seconds."""
        self.moves: list[Moves] = []
        self.calls = 0
        self.wasted_seconds = 0.0
        """Sampling that was thrown away."""
        self.sampled_seconds = 0.0
        self.busy_seconds: dict[str, float] = {}
        self._clock = clock
        self._load = load
        self._service = costs.gateway_ms_per_call / 1000
        self._commit = costs.commit_ms / 1000
        self._drawn = random.Random(SEED)  # noqa: S311 - a seeded model
        self._free_at: dict[str, float] = {}
        self._divided = 0
        self._claims: dict[str, Claim] = {}
        self._owner: dict[int, str] = {}
        self._owned_from: dict[int, float] = dict.fromkeys(range(load.partitions), 0.0)
        self._open: dict[int, set[Session]] = {number: set() for number in range(load.partitions)}
        for number in range(gateways):
            self._claims[f"g{number}"] = Claim()
        self._divide()

    def begin(self, session_id: str, over: Callable[[], None]) -> None:
        """Start a session; `over` is called when its last call has ended."""
        session = Session(partition_for(session_id, self._load.partitions), self._load.calls_per_session, over)
        self._clock.after(self._load.tool_seconds * self._drawn.uniform(*SPREAD), lambda: self._ask(session))

    def join(self) -> None:
        """Let one more gateway join."""
        before = dict(self._owner)
        self._claims[f"g{len(self._claims)}-new"] = Claim()
        needed = self._load.partitions // len(self._claims)
        self._divide()
        moved = [number for number, owner in self._owner.items() if before[number] != owner]
        for number in moved:
            self._owned_from[number] = max([self._clock.now, *(session.ends_at for session in self._open[number])]) + TAKE_OVER_SECONDS
        self._moved("join", needed, moved)

    def kill(self) -> None:
        """Kill a gateway, with the calls that are open there."""
        dead = min(self._claims)
        lost = [number for number, owner in self._owner.items() if owner == dead]
        served_again = self._clock.now + SESSION_TIMEOUT_SECONDS + TAKE_OVER_SECONDS
        sessions = [session for number in lost for session in self._open[number]]
        for session in sessions:
            session.version += 1
            self.wasted_seconds += max(0.0, min(self._clock.now, session.ends_at) - session.begun_at)
            self._open[session.partition].discard(session)
        del self._claims[dead]
        before = dict(self._owner)
        self._divide()
        moved = [number for number, owner in self._owner.items() if before[number] != owner]
        self._owned_from.update(dict.fromkeys(moved, served_again))
        for session in sessions:
            self._ask(session)
        self._moved("kill", len(lost), moved)

    def _moved(self, what: str, needed: int, moved: list[int]) -> None:
        longest = max((self._owned_from[number] - self._clock.now for number in moved), default=0.0)
        self.moves.append(Moves(what=what, needed=needed, made=len(moved), longest_wait_seconds=longest))

    def _divide(self) -> None:
        self._divided += 1
        divided = divide(range(self._load.partitions), self._claims)
        self._claims = {name: Claim(self._divided, given) for name, given in divided.items()}
        self._owner = {number: name for name, given in divided.items() for number in given}

    def _ask(self, session: Session) -> None:
        session.asked_at = self._clock.now
        self._reach(session)

    def _reach(self, session: Session) -> None:
        """Let a call reach its owner's thread, as soon as there is an owner."""
        served_from = self._owned_from[session.partition]
        if served_from > self._clock.now:
            version = session.version
            self._clock.after(served_from - self._clock.now, lambda: self._reach(session) if session.version == version else None)
            return
        owner = self._owner[session.partition]
        begun = max(self._clock.now, self._free_at.get(owner, 0.0)) + self._service
        self._free_at[owner] = begun
        self.busy_seconds[owner] = self.busy_seconds.get(owner, 0.0) + self._service
        self.waits.append(begun - session.asked_at)
        sampling = self._load.call_seconds * self._drawn.uniform(*SPREAD)
        session.begun_at, session.ends_at = begun, begun + sampling + self._commit
        self._open[session.partition].add(session)
        version = session.version
        self._clock.after(session.ends_at - self._clock.now, lambda: self._end(session, version))

    def _end(self, session: Session, version: int) -> None:
        if session.version != version:
            return
        self._open[session.partition].discard(session)
        self.calls += 1
        self.sampled_seconds += session.ends_at - session.begun_at
        session.calls_left -= 1
        if session.calls_left:
            self._clock.after(self._load.tool_seconds * self._drawn.uniform(*SPREAD), lambda: self._ask(session))
        else:
            session.over()
