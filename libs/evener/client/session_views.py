"""The JSON of the reconstructor's endpoints: a session as the log has it, and rebuilt sessions."""

from enum import StrEnum
from typing import Any

from msgspec import Struct

from evener.proto.reasons import CallFailure, ExclusionReason, TerminationReason
from evener.proto.sessions import Artifact, Fidelity, FinishReason, Placement
from evener.proto.spec import Purpose, SessionSpec, Strategy
from evener.proto.trajectories import Accounting, Flag, Row, TrajectoryBuilt


class SegmentView(Struct, frozen=True, kw_only=True):
    """The tokens that one choice of a call sampled, and where they went."""

    tokens: int
    trained: int
    """The number of tokens that one of its rows trains."""
    excluded: dict[ExclusionReason, int]
    """The number of other tokens, by reason."""
    finish_reason: FinishReason
    rows: tuple[int, ...]
    """The numbers of the rows that hold the segment, beginning with the one that trains it."""


class CallView(Struct, frozen=True, kw_only=True):
    """A call of a session: its place, its prompt, its answers and its end."""

    number: int
    """The number of the call in the order of the log, from 1."""
    call_id: str
    attempt: int
    parent: int | None
    """The number of the call that it extends. None: the call is a root."""
    parent_choice: int
    placement: Placement
    given_tokens: int
    """The number of prompt tokens after the parent's sampled tokens, or all prompt tokens of a root."""
    prompt_tokens: int
    """The number of tokens in the whole context."""
    segments: tuple[SegmentView, ...]
    """The segment of each choice. Empty: the call is open or failed."""
    policy: str | None
    model: str
    engine_id: str
    fidelity: Fidelity
    side_call: str | None
    retry_of: int | None
    """The number of the call that it replaces."""
    try_number: int
    failure: CallFailure | None
    detail: str
    """The detail of the failure."""
    received: bool
    """Whether the harness received the answer, and no retry superseded it."""
    opened_at: float
    closed_at: float | None
    """When the call ended. None: it is open."""


class AttemptView(Struct, frozen=True, kw_only=True):
    """An attempt of a session."""

    attempt: int
    started_at: float
    termination_reason: TerminationReason | None
    """Why the attempt ended. None: it continues, or a later one took its place."""
    detail: str


class Preview(Struct, frozen=True, kw_only=True):
    """What the rows would be if the session ended now for a trainable reason."""

    attempt: int
    spec: SessionSpec
    rows: tuple[Row, ...]
    accounting: Accounting
    inconsistencies: tuple[str, ...]


class Proposed(Struct, frozen=True, kw_only=True):
    """Quirks that the session's harness should declare, from what its calls showed."""

    because: tuple[str, ...]
    """One sentence for each observation."""
    toml: str
    """A quirks file with the quirks that the session had and the proposed ones."""


class SessionSource(StrEnum):
    """Where a session was read."""

    LOG = "log"
    RECORDS = "records"
    """The blob of its records, because the log was trimmed."""


class SessionView(Struct, frozen=True, kw_only=True):
    """GET /sessions/{id} of the reconstructor: a session, rebuilt from the log. Keys stay; more may be added."""

    session_id: str
    source: SessionSource
    attempts: tuple[AttemptView, ...]
    calls: tuple[CallView, ...]
    """The calls of all attempts, in the order of the log."""
    trajectory: TrajectoryBuilt | None
    """The trajectory. None: the session has not ended; see `preview`."""
    preview: Preview | None = None
    """The preview of an open session. None: the session has ended."""
    messages: tuple[tuple[dict[str, Any], ...], ...]
    """The canonical messages of each row's branch; empty if they cannot be read. Without rows: the messages up to the agent's last."""
    proposed: Proposed | None = None
    """The proposed quirks. None: nothing suggests more than the harness declares."""

    last_message: int | None = None
    """The number of the call whose answer is the agent's last message. None: there is none."""
    other_message: int | None = None
    """The number of a call of another conversation whose answer may be the agent's last message all the same. None: there is none."""

    @property
    def told(self) -> "TrajectoryBuilt | Preview":
        """The trajectory or the preview. Raises ValueError for a view with neither."""
        told = self.trajectory or self.preview
        if told is None:
            msg = f"session {self.session_id} has neither a trajectory nor a preview"
            raise ValueError(msg)
        return told


class Score(Struct, frozen=True, kw_only=True):
    """A finished grading."""

    reward: float | None
    """The reward. None: the session was not graded; see `ungraded`."""
    rewards: dict[str, float]
    """All numbers that the grader named."""
    call_rewards: dict[str, float] = {}
    """Rewards of single calls, by call id."""
    ungraded: str | None
    grader: str
    evidence: tuple[Artifact, ...]
    """What the grading left: output, numbers."""
    flags: tuple[Flag, ...] = ()
    """The signs of reward hacking, with the evidence."""
    unwatched: str | None = None
    """Why the detectors could not look at all of the session. None: they did."""
    grading_seconds: float
    tries: int


class Use(Struct, frozen=True, kw_only=True):
    """What became of a session in its group."""

    group_id: str
    purpose: Purpose
    delivered: bool
    """Whether the group was delivered. If not, it failed."""
    reason: str
    """Why the group failed."""
    excluded: ExclusionReason | None
    """Why the session is excluded from its delivered group. None: it is not."""


class ScoreView(Struct, frozen=True, kw_only=True):
    """GET /scores/{id} of the trainer-bridge: a session's score, and its use."""

    session_id: str
    score: Score | None
    """The score. None: the session is not graded yet, or unknown."""
    use: Use | None
    """The use. None: the group has not ended."""


class RebuildRequest(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """POST /rebuild of the reconstructor: the sessions to rebuild, by name, or all that ended since a time or in a run."""

    sessions: tuple[str, ...] = ()
    since: float | None = None
    """A time in Unix seconds: rebuild sessions that were sealed then or later."""
    run_id: str | None = None
    strategy: Strategy | None = None
    """The strategy. None: the recorded one, otherwise `tree`."""
    whole: bool = False
    """Whether to send the trajectories too."""


class Rebuilt(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One rebuilt session, as POST /rebuild streams it."""

    session_id: str
    number: int
    """The number of the session, from 1 to `total`."""
    total: int
    problem: str | None = None
    """Why the session could not be rebuilt. The other fields then say nothing."""
    source: SessionSource = SessionSource.LOG
    strategy: Strategy = Strategy.TREE
    termination_reason: TerminationReason | None = None
    rows: int = 0
    tokens: int = 0
    """The number of tokens in its rows."""
    trained: int = 0
    digest: str = ""
    """The digest of its rows."""
    recorded: str | None = None
    """The digest of the TrajectoryBuilt in the log. None: there is none."""
    equal: bool | None = None
    """Whether everything equals the record. None: there is no record, or it has another strategy."""
    differs: tuple[str, ...] = ()
    """The fields of TrajectoryBuilt that differ from the record."""
    inconsistencies: tuple[str, ...] = ()
    trajectory: TrajectoryBuilt | None = None
