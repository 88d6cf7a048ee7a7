"""I5: checks the trajectory of a session, and whether it can be built again."""

import hashlib
from typing import Final

from msgspec import Struct

from evener.audit.findings import Findings, Invariant
from evener.audit.snapshot import EventRecord
from evener.bus.port import Position
from evener.proto.blobs import BlobRef
from evener.proto.codec import encode
from evener.proto.reasons import TerminationReason
from evener.proto.spec import Strategy
from evener.proto.trajectories import RowKind, TrajectoryBuilt
from evener.tokens.rows import digest
from evener.tokens.session import SessionLog
from evener.tokens.trajectory import build

MAIN_KINDS: Final = frozenset({RowKind.MAIN, RowKind.BRANCH, RowKind.COMPACTION})


class BuiltFacts(Struct, kw_only=True, eq=False):
    """The parts of a session's first TrajectoryBuilt, and of its repeats, that the audit keeps."""

    at: list[Position]
    contents: set[str]
    """The digests of the events. More than one: they differ."""
    termination_reason: TerminationReason
    attempt: int
    own_tokens: int
    """The policy's tokens that the agent itself sampled in the attempt that counts."""
    versions: tuple[int, ...]
    """The policy versions of its trainable tokens."""
    main_calls: frozenset[str]
    """The calls of the rows of its main conversation."""
    rows_digest: str
    inconsistencies: tuple[str, ...]
    records: BlobRef | None
    strategy: Strategy


def note_built(known: dict[str, BuiltFacts], built: TrajectoryBuilt, read: EventRecord) -> None:
    """Note a TrajectoryBuilt, its rows inline."""
    content = _content(built)
    if (facts := known.get(built.session_id)) is not None:
        facts.at.append(read.at)
        facts.contents.add(content)
        return
    known[built.session_id] = BuiltFacts(
        at=[read.at],
        contents={content},
        termination_reason=built.termination_reason,
        attempt=built.attempt,
        own_tokens=_own_tokens(built),
        versions=built.versions,
        main_calls=frozenset(call for row in built.rows if row.kind in MAIN_KINDS for call in row.calls),
        rows_digest=digest(built.rows),
        inconsistencies=built.inconsistencies,
        records=built.records,
        strategy=built.strategy,
    )


def check_rebuilt(session: SessionLog, facts: BuiltFacts, source: str, findings: Findings, *at: Position) -> None:
    """Build a session again. `source`: what it was read from, in words."""
    findings.count(Invariant.REBUILT)
    if facts.contents != {_rebuilt(session, facts)}:
        differ = f", which has {len(facts.contents)} versions" if len(facts.contents) > 1 else ""
        what = f"built again from {source}, it differs from the recorded one{differ}"
        findings.breach(Invariant.REBUILT, session.session_id, what, *facts.at, *at)


def _rebuilt(session: SessionLog, facts: BuiltFacts) -> str | None:
    try:
        return _content(build(session, records=facts.records, strategy=facts.strategy))
    except ValueError:  # no seal, or no spec
        return None


def _content(built: TrajectoryBuilt) -> str:
    return hashlib.sha256(encode(built)).hexdigest()


def _own_tokens(built: TrajectoryBuilt) -> int:
    own = (call for call in built.calls if call.attempt == built.attempt and call.side_call is None and not call.frozen)
    return sum(call.sampled_tokens for call in own)
