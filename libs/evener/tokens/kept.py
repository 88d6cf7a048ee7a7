"""A session with its records as they are kept: one blob, from which the session is built again when the log was trimmed."""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from evener.proto.codec import decode
from evener.tokens.session import SessionLog


class KeptRecord(Struct, frozen=True, array_like=True):
    """A committed record as it is kept with its session, payloads included."""

    offset: int
    timestamp_ms: int
    event: bytes
    inconsistency: str = ""
    """Why the record could not be read; `event` is then empty."""


_kept: Final = msgspec.msgpack.Decoder(list[KeptRecord])


class KeptSession(Struct, frozen=True, eq=False):
    """A session as far as it was read, with its records."""

    session: SessionLog
    kept: list[KeptRecord]

    @property
    def whole(self) -> bool:
        """Whether the session's first record was read."""
        return 1 in self.session.starts or (self.session.given_up is not None and not self.session.given_up.attempt)


def pack(kept: Sequence[KeptRecord]) -> bytes:
    """Return records as one blob: a msgpack array of [offset, milliseconds, event, inconsistency]. It may be large: call it in a thread."""
    header = msgspec.msgpack.encode([None] * len(kept))[: -len(kept) or None]
    # One by one: a hundred megabytes in one piece would keep the interpreter's lock for too long.
    return b"".join((header, *map(msgspec.msgpack.encode, kept)))


def unpack(session_id: str, data: bytes) -> KeptSession:
    """Return the session whose records are in a blob. Raises BadRecord, msgspec.DecodeError."""
    read = KeptSession(SessionLog(session_id), _kept.decode(data))
    for kept in read.kept:
        if kept.inconsistency:
            read.session.inconsistencies.append(kept.inconsistency)
        else:
            read.session.apply(decode(kept.event), offset=kept.offset, record_at=kept.timestamp_ms / 1000)
    return read
