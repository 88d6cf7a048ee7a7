"""What the schedulers have queued, according to `fleet`, and for how much of it this runner prepares sandboxes."""

from collections.abc import Iterable
from typing import Final
from zlib import crc32

import msgspec
from msgspec import Struct, structs

from evener.proto.fleet import Heartbeat, QueuedSessions
from evener.proto.sandbox import SandboxKind
from evener.service.fleet_feed import FleetRecord

ALIVE_SECONDS: Final = 10.0
"""An instance that was not heard for this time counts no more."""


class _Heard(Struct, frozen=True):
    beat: Heartbeat
    at: float


class QueueShare:
    """Divides the queued sessions among the living runners: each prepares its share, and all together prepare each session's sandbox once.

    Which runners prepare a kind that is needed less often than there are runners follows from the kind's and the runners' names, so that
    images stay on the machines that have them.
    """

    def __init__(self, runner_id: str) -> None:
        self._runner_id = runner_id
        self._schedulers: dict[str, _Heard] = {}
        self._runners: dict[str, _Heard] = {}

    def read(self, records: Iterable[FleetRecord]) -> None:
        """Apply records of `fleet`. Those from before this process followed it say nothing of who is alive."""
        for record in records:
            for known in (self._schedulers, self._runners):
                known.pop(record.key, None)
            beat = record.event
            if not isinstance(beat, Heartbeat) or beat.stopping or record.heard_at is None:
                continue
            if beat.active_epoch:
                self._schedulers[record.key] = _Heard(beat, record.heard_at)
            elif beat.capacity and beat.service == "sandbox_runner":
                self._runners[record.key] = _Heard(beat, record.heard_at)

    def share(self, *, now: float) -> tuple[QueuedSessions, ...]:
        """Return what this runner is to prepare for, the next sessions first. `now` is of the feed's clock."""
        others = {runner_id for runner_id, heard in self._runners.items() if now - heard.at < ALIVE_SECONDS}
        runners = others | {self._runner_id}
        found: dict[SandboxKind, QueuedSessions] = {}
        for heard in self._schedulers.values():
            for queued in heard.beat.queued if now - heard.at < ALIVE_SECONDS else ():
                known = found.get(queued.kind)
                found[queued.kind] = queued if known is None else structs.replace(known, sessions=known.sessions + queued.sessions)
        shares = (structs.replace(queued, sessions=self._part(queued, runners)) for queued in found.values())
        return tuple(queued for queued in shares if queued.sessions)

    def _part(self, queued: QueuedSessions, runners: set[str]) -> int:
        kind = msgspec.msgpack.encode(queued.kind)
        places = {runner_id: (crc32(kind + runner_id.encode()), runner_id) for runner_id in runners}
        before = sum(place < places[self._runner_id] for place in places.values())
        each, left = divmod(queued.sessions, len(runners))
        return each + (before < left)
