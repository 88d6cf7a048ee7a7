"""Replays a partition of `sessions`: records go in, sealed sessions come out. Pure. Only open sessions have state."""

from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Struct

from evener.bus.port import Record
from evener.proto.codec import AnyEvent, decode, encode
from evener.tokens.mark import LowWater
from evener.tokens.session import SessionLog


class KeptRecord(Struct, frozen=True, array_like=True):
    """A committed record as it is kept with its session, payloads included."""

    offset: int
    timestamp_ms: int
    event: bytes
    inconsistency: str = ""
    """Why the record could not be read; `event` is then empty."""


_kept: Final = msgspec.msgpack.Decoder(list[KeptRecord])


class Read(Struct, frozen=True, eq=False):
    """A session as far as it was read, with its records."""

    session: SessionLog
    kept: list[KeptRecord]

    @property
    def records(self) -> bytes:
        """The records as one blob."""
        return pack(self.kept)

    @property
    def whole(self) -> bool:
        """Whether the session's first record was read."""
        return 1 in self.session.starts or (self.session.given_up is not None and not self.session.given_up.attempt)


class Replay:
    """The replay of a partition from its low-water mark."""

    def __init__(self) -> None:
        self._water = LowWater()
        self._open: dict[str, Read] = {}

    def knows_sealed(self, session_id: str) -> bool:
        """Return whether the session's records can be skipped."""
        return self._water.is_sealed(session_id)

    def still_open(self, session_id: str) -> Read | None:
        """Return what was read of a session that has no seal yet. None: no record of it counts."""
        return self._open.get(session_id)

    def fold(self, session_id: str, event: AnyEvent, record: Record) -> Read | None:
        """Fold in one record. Returns the session if the record is its seal."""
        known = self._open.get(session_id)
        read = known or Read(SessionLog(session_id), [])
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


def pack(kept: Iterable[KeptRecord]) -> bytes:
    """Return records as one blob: a msgpack array of [offset, milliseconds, event, inconsistency]."""
    return msgspec.msgpack.encode(list(kept))


def unpack(session_id: str, data: bytes) -> Read:
    """Return the session whose records are in a blob. Raises BadRecord, msgspec.DecodeError."""
    read = Read(SessionLog(session_id), _kept.decode(data))
    for kept in read.kept:
        if kept.inconsistency:
            read.session.inconsistencies.append(kept.inconsistency)
        else:
            read.session.apply(decode(kept.event), offset=kept.offset, record_at=kept.timestamp_ms / 1000)
    return read
