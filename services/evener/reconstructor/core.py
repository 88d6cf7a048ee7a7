"""Replays a partition of `sessions`: records go in, sealed sessions come out. Pure. Only open sessions have state."""

from evener.bus.port import Record
from evener.proto.codec import AnyEvent, encode
from evener.tokens.kept import KeptRecord, KeptSession
from evener.tokens.mark import LowWater
from evener.tokens.session import SessionLog


class Replay:
    """The replay of a partition from its low-water mark."""

    def __init__(self) -> None:
        self._water = LowWater()
        self._open: dict[str, KeptSession] = {}

    def knows_sealed(self, session_id: str) -> bool:
        """Return whether the session's records can be skipped."""
        return self._water.is_sealed(session_id)

    def still_open(self, session_id: str) -> KeptSession | None:
        """Return the folded records of a session that has no seal yet. None: none of its records counts."""
        return self._open.get(session_id)

    def fold(self, session_id: str, event: AnyEvent, record: Record) -> KeptSession | None:
        """Fold in one record. Returns the session if the record is its seal."""
        known = self._open.get(session_id)
        read = known or KeptSession(SessionLog(session_id), [])
        session, inconsistencies = read.session, len(read.session.inconsistencies)
        counted = session.apply(event, offset=record.offset, record_at=record.timestamp_ms / 1000)
        if not counted and (known is None or len(session.inconsistencies) == inconsistencies):  # a late or foreign record opens no session
            return None
        self._open[session_id] = read
        self._water.opened(session_id, record.offset)
        read.kept.append(KeptRecord(record.offset, record.timestamp_ms, encode(event)))
        if session.sealed is None:
            return None
        del self._open[session_id]
        self._water.sealed(session_id, record.offset, session.sealed.sealed_at)
        return read

    def note_inconsistency(self, session_id: str, why: str, record: Record) -> None:
        """Note a record of an open session that could not be read."""
        if (read := self._open.get(session_id)) is not None:
            read.kept.append(KeptRecord(record.offset, record.timestamp_ms, b"", why))
            read.session.inconsistencies.append(why)

    def mark(self, next_offset: int, now: float) -> int:
        """Return the offset at which a new reconstructor must begin."""
        return self._water.mark(next_offset, now)
