"""Pure replay of a partition of `sessions`: records in, sealed sessions out. State is kept for open sessions only."""

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from evener.bus.port import Record
from evener.proto.codec import AnyEvent, decode, encode
from evener.tokens.mark import LowWater
from evener.tokens.session import Session


class Kept(Struct, frozen=True, array_like=True):
    """A committed record as it is kept with its session: payloads included."""

    offset: int
    timestamp_ms: int
    event: bytes


class Replayed(Struct, frozen=True, eq=False):
    """A session that was sealed, with its records."""

    session: Session
    records: bytes
    """`pack`ed."""


class Replay:
    """A partition, from its low-water mark on."""

    def __init__(self) -> None:
        self._water = LowWater()
        self._open: dict[str, tuple[Session, list[Kept]]] = {}

    def knows_sealed(self, session_id: str) -> bool:
        """Return whether the session's records can be skipped."""
        return self._water.is_sealed(session_id)

    def fold(self, session_id: str, event: AnyEvent, record: Record) -> Replayed | None:
        """Fold one record in. Returns the session when this is its seal."""
        session, kept = self._open.get(session_id) or (Session(session_id), [])
        at = record.timestamp_ms / 1000
        counted = session.apply(event, offset=record.offset, record_at=at)
        if not counted and not session.stray_tokens:
            return None
        self._open[session_id] = (session, kept)
        self._water.opened(session_id, record.offset)
        kept.append(Kept(record.offset, record.timestamp_ms, encode(event)))
        if session.sealed is None:
            return None
        del self._open[session_id]
        self._water.sealed(session_id, record.offset, session.sealed.sealed_at)
        return Replayed(session, pack(kept))

    def mark(self, next_offset: int, now: float) -> int:
        """Return where a reconstructor that starts anew must begin."""
        return self._water.mark(next_offset, now)


def pack(kept: Iterable[Kept]) -> bytes:
    """Return records as one blob: a msgpack array of [offset, milliseconds, event]."""
    return msgspec.msgpack.encode(list(kept))


def unpack(session_id: str, data: bytes) -> Session:
    """Return the session whose records are in a blob. Raises BadRecord, msgspec.DecodeError."""
    session = Session(session_id)
    for kept in msgspec.msgpack.decode(data, type=list[Kept]):
        session.apply(decode(kept.event), offset=kept.offset, record_at=kept.timestamp_ms / 1000)
    return session
