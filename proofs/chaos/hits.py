"""Which strikes counted: something was open when they struck, as the log, the fleet and the doubles' ledgers show."""

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct
from proofs.chaos.strikes import Strike
from proofs.chaos.work import Noted

from evener.bus.port import LogReader
from evener.proto.codec import decode
from evener.proto.fleet import Heartbeat
from evener.proto.sessions import SessionStarted
from evener.proto.topics import HEADER_SESSION, Topic
from evener.service.events import header


class Span(Struct, frozen=True):
    """From when to when something was open. Unix seconds, infinite: it still is."""

    start: float
    end: float

    def holds(self, at: float) -> bool:
        """Return whether it was open then."""
        return self.start < at < self.end


class OpenWork:
    """The work that was open, and where."""

    def __init__(self) -> None:
        self.requests: dict[str, list[Span]] = defaultdict(list)
        """From a harness's first try of a request to its answer, by session."""
        self.sessions: dict[str, Span] = {}
        """From a session's first start to its trajectory: the reconstructor holds its records."""
        self.gradings: dict[str, Span] = {}
        """From a trajectory to its score, by session."""
        self.groups: dict[str, Span] = {}
        """From a group's first score to its end: the bridge holds it."""
        self._partition: dict[str, int] = {}
        self._runners: dict[str, list[tuple[float, str]]] = defaultdict(list)
        self._beats: dict[str, list[tuple[float, Heartbeat]]] = defaultdict(list)

    def hit(self, strike: Strike) -> bool:
        """Return whether a strike met something open, of the instance that it struck, or of the whole service."""
        if strike.inside:
            return True
        at, own = strike.at, strike.instance_id
        beat = self._beat(own, at)
        match strike.service:
            case "provider_gateway" if own:
                return beat is not None and any(self._partition.get(session) in beat.partitions for session in self._asking(at))
            case "sandbox_runner" if own:
                return any(self._runner(session, at) == own for session in self._asking(at))
            case "scheduler" if own:
                return beat is not None and beat.active_epoch > 0 and any(self._asking(at))
            case "reconstructor":
                return any(span.holds(at) for span in self.sessions.values())
            case "evaluator":
                return any(span.holds(at) for span in self.gradings.values())
            case "trainer_bridge":
                return any(span.holds(at) for span in self.groups.values())
            case _:
                return any(self._asking(at))

    async def read(self, log: LogReader, noted: Iterable[Noted]) -> None:
        """Read the log and the ledgers."""
        await self._read_sessions(log)
        built = await _times(log, Topic.BUILT)
        scored = await _times(log, Topic.SCORED)
        ends = {**await _times(log, Topic.MERGED, by_key=True), **await _times(log, Topic.KEPT, by_key=True)}
        for session, span in self.sessions.items():
            self.sessions[session] = Span(span.start, built.get(session, math.inf))
        self.gradings = {session: Span(at, scored.get(session, math.inf)) for session, at in built.items()}
        firsts: dict[str, float] = {}
        for session, at in scored.items():
            group = session.rpartition(".")[0]
            firsts[group] = min(at, firsts.get(group, at))
        self.groups = {group: Span(at, ends.get(group, math.inf)) for group, at in firsts.items()}
        self._note_requests(noted)
        async for record in log.read(Topic.FLEET, 0, await log.beginning(Topic.FLEET, 0)):
            event = decode(record.value) if record.value is not None else None
            if isinstance(event, Heartbeat):
                self._beats[event.instance_id].append((record.timestamp_ms / 1000, event))

    async def _read_sessions(self, log: LogReader) -> None:
        for partition in range(log.partitions_of(Topic.SESSIONS)):
            async for record in log.read(Topic.SESSIONS, partition, await log.beginning(Topic.SESSIONS, partition)):
                session, at = record.key, record.timestamp_ms / 1000
                self._partition[session] = partition
                if isinstance(start := decode(record.value or b""), SessionStarted):
                    self._runners[session].append((at, start.runner_id))
                    self.sessions.setdefault(session, Span(at, at))

    def _note_requests(self, noted: Iterable[Noted]) -> None:
        """Note when each request was open."""
        asks: dict[tuple[str, str], Noted] = {}
        for one in noted:
            request = (one.sandbox, one.body_digest)
            if one.kind == "asks":
                asks.setdefault(request, one)
            elif one.kind == "answered":
                self.requests[one.session_id].append(Span(asks.pop(request).at, one.at))
        for one in asks.values():
            lives = Path(f"/proc/{one.pid}").exists()
            if (end := math.inf if lives else self._next_start(one.session_id, one.at)) is not None:
                self.requests[one.session_id].append(Span(one.at, end))

    def _next_start(self, session: str, at: float) -> float | None:
        """Return when the attempt after the one that asked was started: its harness died with its runner, and waited until then."""
        return next((start for start, _ in self._runners.get(session, ()) if start > at), None)

    def _asking(self, at: float) -> Iterator[str]:
        """Yield the sessions whose harness waits for an answer."""
        return (session for session, spans in self.requests.items() if any(span.holds(at) for span in spans))

    def _runner(self, session: str, at: float) -> str | None:
        started = self._runners.get(session, [])
        place = bisect_right([start for start, _ in started], at)
        return started[place - 1][1] if place else None

    def _beat(self, instance_id: str, at: float) -> Heartbeat | None:
        """Return the last heartbeat of an instance before a time."""
        beats = self._beats.get(instance_id, [])
        place = bisect_right([sent for sent, _ in beats], at)
        return beats[place - 1][1] if place else None


async def hits(log: LogReader, noted: Iterable[Noted], strikes: Iterable[Strike]) -> set[Strike]:
    """Return the strikes that counted. Heartbeats are compacted: soon after a strike the log may no longer show it."""
    work = OpenWork()
    await work.read(log, noted)
    return {strike for strike in strikes if work.hit(strike)}


async def _times(log: LogReader, topic: Topic, *, by_key: bool = False) -> dict[str, float]:
    """Return when the first record of each session was written, or of each key."""
    first: dict[str, float] = {}
    for partition in range(log.partitions_of(topic)):
        async for record in log.read(topic, partition, await log.beginning(topic, partition)):
            name = record.key if by_key else (header(record, HEADER_SESSION) or b"").decode()
            first.setdefault(name, record.timestamp_ms / 1000)
    return first
