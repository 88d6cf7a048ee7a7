"""Folds records of `sessions`, in the same way for the stream, for a look at one session, and for a rebuild."""

from evener.bus.port import Record
from evener.proto.codec import BadRecord
from evener.proto.topics import HEADER_SESSION
from evener.reconstructor.core import Replay
from evener.service.events import EventLog, header
from evener.tokens.kept import KeptSession


class SessionsReader:
    """The reader of one partition."""

    def __init__(self, events: EventLog) -> None:
        self.replay = Replay()
        self._events = events

    async def fold(self, record: Record) -> KeptSession | None:
        """Fold in one record; return the session that it seals. Raises BadRecord after noting the inconsistency in its session."""
        session_id = session_of(record)
        if self.replay.knows_sealed(session_id):
            return None
        try:
            event = await self._events.event(record)
        except BadRecord as bad:
            self.replay.note_inconsistency(session_id, f"record {record.offset}: {bad.args[0]}", record)
            raise
        return self.replay.fold(session_id, event, record)


def session_of(record: Record) -> str:
    """Return the id of the session in a record's header or key."""
    return (header(record, HEADER_SESSION) or b"").decode(errors="replace") or record.key
