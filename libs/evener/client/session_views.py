"""What the reconstructor's endpoints say and are told: a session as it is in the log, and sessions built again."""

from enum import StrEnum
from typing import Any

from msgspec import Struct

from evener.proto.ends import CallFailure, End, LeftOut
from evener.proto.sessions import Artifact, Fidelity, FinishReason, Placement
from evener.proto.spec import Purpose, SessionSpec, Strategy
from evener.proto.trajectories import Accounting, Row, TrajectoryBuilt


class SegmentView(Struct, frozen=True, kw_only=True):
    """What one choice of a call sampled, and where it went."""

    tokens: int
    trained: int
    """In one of the rows that hold it."""
    left_out: dict[LeftOut, int]
    """Its other tokens, by reason."""
    finish_reason: FinishReason
    rows: tuple[int, ...]
    """Numbers of the rows that hold it, the one that trains it first."""


class CallView(Struct, frozen=True, kw_only=True):
    """A call of a session: where it hangs, what was given and sampled, how it ended."""

    number: int
    """Counts from 1, in the order of the log."""
    call_id: str
    attempt: int
    parent: int | None
    """The number of the call that it extends. None: a root."""
    parent_choice: int
    placement: Placement
    given_tokens: int
    """After the parent's sampled tokens; of a root all."""
    prompt_tokens: int
    """The whole context."""
    segments: tuple[SegmentView, ...]
    """Of each choice. Empty: it is open or failed."""
    policy: str | None
    model: str
    engine_id: str
    fidelity: Fidelity
    side_call: str | None
    retry_of: int | None
    """The number of the call that it supersedes."""
    try_number: int
    failure: CallFailure | None
    detail: str
    """Of the failure."""
    received: bool
    """False: its answer reached nobody, or a retry superseded it."""
    opened_at: float
    closed_at: float | None
    """None: it is open."""


class AttemptView(Struct, frozen=True, kw_only=True):
    """An attempt of a session."""

    attempt: int
    started_at: float
    end: End | None
    """None: it goes on, or a later one took its place."""
    detail: str


class Preview(Struct, frozen=True, kw_only=True):
    """What the rows would be if the session ended now, with a trainable end."""

    attempt: int
    spec: SessionSpec
    rows: tuple[Row, ...]
    accounting: Accounting
    doubts: tuple[str, ...]


class Proposed(Struct, frozen=True, kw_only=True):
    """What the session's harness should declare, by what was seen of it."""

    because: tuple[str, ...]
    """A sentence for each thing that was seen."""
    toml: str
    """A file of quirks: those that the session had, and those that are proposed."""


class Source(StrEnum):
    """Where a session was read."""

    LOG = "log"
    RECORDS = "records"
    """The blob of its records: the log was trimmed."""


class SessionView(Struct, frozen=True, kw_only=True):
    """GET /sessions/{id} of the reconstructor: a session, built again from the log. Keys stay; more may come."""

    session_id: str
    source: Source
    attempts: tuple[AttemptView, ...]
    calls: tuple[CallView, ...]
    """Of all attempts, in the order of the log."""
    trajectory: TrajectoryBuilt | None
    """None: the session has not ended, see `preview`."""
    preview: Preview | None = None
    """None: it has ended."""
    messages: tuple[tuple[dict[str, Any], ...], ...]
    """Per row: the canonical messages of its branch; empty where they cannot be read. Without rows: those up to the agent's last."""
    proposed: Proposed | None = None
    """None: nothing that was seen asks for more than its harness declares."""

    @property
    def told(self) -> "TrajectoryBuilt | Preview":
        """What is known of its rows. Raises ValueError for a view with neither."""
        told = self.trajectory or self.preview
        if told is None:
            msg = f"session {self.session_id} has neither a trajectory nor a preview"
            raise ValueError(msg)
        return told


class Score(Struct, frozen=True, kw_only=True):
    """A finished grading."""

    reward: float | None
    """None: not graded, see `ungraded`."""
    rewards: dict[str, float]
    """All named numbers of the grader."""
    ungraded: str | None
    grader: str
    evidence: tuple[Artifact, ...]
    """What the grading left: output, numbers."""
    grading_seconds: float
    tries: int


class Use(Struct, frozen=True, kw_only=True):
    """What became of a session in its group."""

    group_id: str
    purpose: Purpose
    delivered: bool
    """False: the group failed."""
    reason: str
    """Why it failed."""
    left_out: LeftOut | None
    """Why the session is not in a delivered group. None: it is."""


class ScoreView(Struct, frozen=True, kw_only=True):
    """GET /scores/{id} of the trainer-bridge: what a session was worth."""

    session_id: str
    score: Score | None
    """None: not graded yet, or no such session."""
    use: Use | None
    """None: its group has not ended."""


class RebuildRequest(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """POST /rebuild of the reconstructor: which sessions to build again. Named ones, or all that ended since a time or in a run."""

    sessions: tuple[str, ...] = ()
    since: float | None = None
    """Unix seconds: sealed then or later."""
    run_id: str | None = None
    strategy: Strategy | None = None
    """None: as recorded, else `tree`."""
    whole: bool = False
    """Send the trajectories, too."""


class Rebuilt(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One session, built again: what POST /rebuild streams."""

    session_id: str
    number: int
    """Counts from 1 to `total`."""
    total: int
    problem: str | None = None
    """Why it could not be built; the rest says nothing then."""
    source: Source = Source.LOG
    strategy: Strategy = Strategy.TREE
    end: End | None = None
    rows: int = 0
    tokens: int = 0
    """In its rows."""
    trained: int = 0
    digest: str = ""
    """Of its rows."""
    recorded: str | None = None
    """The digest of the TrajectoryBuilt in the log. None: there is none."""
    equal: bool | None = None
    """Whether everything is as recorded. None: nothing to compare with, or recorded by another strategy."""
    differs: tuple[str, ...] = ()
    """Fields of TrajectoryBuilt that are not as recorded."""
    doubts: tuple[str, ...] = ()
    trajectory: TrajectoryBuilt | None = None
