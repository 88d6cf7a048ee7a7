"""I5, I7 and I8 of the sessions of one partition. Only open sessions hold records; of a sealed one a few facts stay."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from evener.audit.answers import Received
from evener.audit.built import BuiltFacts, check_rebuilt
from evener.audit.findings import Findings, Invariant
from evener.audit.ours import met_of_ours
from evener.audit.snapshot import EventRecord
from evener.audit.tasks import AuditedTasks
from evener.bus.port import Position
from evener.proto.codec import BadRecord
from evener.proto.sessions import (
    AttemptEnded,
    CallClosed,
    CallDelivered,
    CallFailed,
    CallOpened,
    CallUndelivered,
    SessionSealed,
)
from evener.tokens.kept import KeptSession
from evener.tokens.session import SessionLog

OWNERS: Final = (CallOpened, CallClosed, CallFailed, CallUndelivered, CallDelivered, AttemptEnded, SessionSealed)
"""Events that the owner of a partition writes."""


class SessionFacts(Struct, frozen=True, kw_only=True, eq=False):
    """The parts of a sealed and built session that the audit keeps."""

    seal: Position | None
    """None: the log was trimmed."""
    built: BuiltFacts
    ours: tuple[str, ...]
    """What forbids that it is trained."""


class OpenSession(Struct, eq=False):
    """A session that has no seal yet."""

    records: list[EventRecord]
    log: SessionLog | None = None
    """The records that count, folded as the reconstructor folds them. None: no record counts."""


class PartitionSessions:
    """The sessions of a partition, record by record."""

    def __init__(self, tasks: AuditedTasks, built: dict[str, BuiltFacts], received: Received, findings: Findings) -> None:
        """`built`: what was built of the partition's sessions."""
        self._tasks = tasks
        self._built = built
        self._received = received
        self._findings = findings
        self.open: dict[str, OpenSession] = {}
        self.facts: dict[str, SessionFacts] = {}
        self.sealed: dict[str, list[Position]] = {}
        """The seals of each session that has any."""
        self.trimmed: set[str] = set()
        """Sessions of which the log lacks the beginning."""
        self.calls = 0

    def record(self, read: EventRecord, *, trimmed: bool) -> None:
        """Note a record. `trimmed`: the partition lacks its first records."""
        session_id = read.record.key
        if (seals := self.sealed.get(session_id)) is not None:
            self._note_late(session_id, read, seals)
            return
        known = self.open.setdefault(session_id, OpenSession([]))
        known.records.append(read)
        _fold(known, session_id, read)
        if isinstance(read.event, SessionSealed):
            del self.open[session_id]
            self.sealed[session_id] = [read.at]
            self._end(session_id, known, read.at, trimmed=trimmed)

    def end(self, *, settled: bool) -> None:
        """Check the sessions that have no seal, after the last record. `settled`: all should have one."""
        for session_id, known in self.open.items():
            self._received.session(session_id, known.records)
            if self._tasks.has_session(session_id) and settled:
                self._findings.count(Invariant.SEALED)
                self._findings.breach(Invariant.SEALED, session_id, "it has 0 seals", known.records[0].at)

    def note_stored(self, session_id: str, stored: KeptSession, records: Sequence[EventRecord]) -> None:
        """Check a session against its stored records, whose events `records` are."""
        built = self._built[session_id]
        check_rebuilt(stored.session, built, "its stored records", self._findings)
        if session_id not in self.facts:
            self.facts[session_id] = SessionFacts(seal=None, built=built, ours=tuple(met_of_ours(built, records)))

    def _end(self, session_id: str, known: OpenSession, seal: Position, *, trimmed: bool) -> None:
        self._received.session(session_id, known.records)
        if not self._tasks.has_session(session_id):
            return
        if trimmed and (known.log is None or not KeptSession(known.log, []).whole):
            self.trimmed.add(session_id)
            return
        self._check_calls(session_id, known.records)
        if known.log is not None and not _has_cause(known.log):
            what = "it was sealed, and neither did the harness of its last attempt exit nor was that attempt given up"
            self._findings.breach(Invariant.SEALED, session_id, what, known.records[0].at, seal)
        if (built := self._built.get(session_id)) is None:
            return
        for inconsistency in built.inconsistencies:
            self._findings.breach(Invariant.REBUILT, session_id, f"inconsistency: {inconsistency}", *built.at)
        check_rebuilt(known.log or SessionLog(session_id), built, "the log", self._findings, known.records[0].at, seal)
        self.facts[session_id] = SessionFacts(seal=seal, built=built, ours=tuple(met_of_ours(built, known.records)))

    def _check_calls(self, session_id: str, records: Sequence[EventRecord]) -> None:
        self._findings.count(Invariant.SEALED)
        opened = Counter(read.event.call_id for read in records if isinstance(read.event, CallOpened))
        ended = Counter(read.event.call_id for read in records if isinstance(read.event, CallClosed | CallFailed))
        self.calls += len(opened)
        for call_id in opened.keys() | ended.keys():
            if opened[call_id] != 1 or ended[call_id] != 1:
                at = [read.at for read in records if getattr(read.event, "call_id", None) == call_id]
                what = f"call {call_id} was opened {opened[call_id]} times and ended {ended[call_id]} times"
                self._findings.breach(Invariant.SEALED, session_id, what, *at)

    def _note_late(self, session_id: str, read: EventRecord, seals: list[Position]) -> None:
        if not isinstance(read.event, OWNERS) or not self._tasks.has_session(session_id):
            return
        if isinstance(read.event, SessionSealed):
            seals.append(read.at)
            self._findings.breach(Invariant.SEALED, session_id, f"it has {len(seals)} seals", *seals)
        else:
            self._findings.breach(Invariant.SEALED, session_id, f"{type(read.event).__name__} after its seal", *seals, read.at)


def _has_cause(log: SessionLog) -> bool:
    """Return whether the last attempt that started has ended: a giving-up that names an earlier one ends nothing."""
    last = max(log.starts, default=0)
    return last in log.exits or (log.given_up is not None and log.given_up.attempt >= last)


def _fold(known: OpenSession, session_id: str, read: EventRecord) -> None:
    """Fold in a record, as the reconstructor does: one that does not count opens no session."""
    record, log = read.record, known.log or SessionLog(session_id)
    if isinstance(read.event, BadRecord):
        if known.log is not None:
            known.log.inconsistencies.append(f"record {record.offset}: {read.event.args[0]}")
    elif log.apply(read.event, offset=record.offset, record_at=record.timestamp_ms / 1000):
        known.log = log
