"""Events of `trajectories.built`, `.scored`, `.merged` and `.kept`: from rows to groups."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from evener.proto.arrays import Float32s, Int32s, Uint8s, check_lengths
from evener.proto.blobs import BlobRef, Sha256
from evener.proto.ends import CallFailure, End, ExitCause, LeftOut
from evener.proto.sessions import Artifact, Event, Fidelity, FinishReason, RootReason
from evener.proto.spec import PolicyOptions, Purpose, Sampling, SessionSpec, Strategy


class RowKind(StrEnum):
    """What a branch is to its session."""

    MAIN = "main"
    """The agent's: of the main conversation's rows that hold its first call, the one with most calls."""
    BRANCH = "branch"
    """Another of the main conversation."""
    SUB_AGENT = "sub_agent"
    """Of a conversation that was begun for an agent which waited for it."""
    COMPACTION = "compaction"
    """It begins with a summary that took the place of a history."""
    CONVERSATION = "conversation"
    """Of a conversation beside the main one that nobody waited for: a title, another prompt of the same program."""


class Row(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One branch as a training sample: T tokens, five arrays of length T."""

    ids: Int32s
    mask: Uint8s
    """1: sampled, trainable, and trained by no earlier row."""
    logprobs: Float32s
    """Natural log, kept wherever sampled, also where the mask is 0. NaN where not sampled or not reported."""
    versions: Int32s
    """-1 where not sampled or not known."""
    call_of: Int32s
    """Index into `calls` of the call that sampled the token. -1 where not sampled."""
    calls: tuple[str, ...]
    """Call ids along the branch, root first."""
    prompt_length: Annotated[int, Meta(ge=0)]
    """Tokens before the first sampled one."""
    kind: RowKind
    root: RootReason
    fidelity: Fidelity
    """`fed` only if every call of the branch was."""
    finish_reason: FinishReason
    """Of the last sampled segment."""
    policy: str
    """Whose tokens are trained."""
    options: PolicyOptions = PolicyOptions()
    sampling: Sampling
    """As used by the branch's last call."""

    def __post_init__(self) -> None:
        """Refuse arrays of different lengths."""
        check_lengths(
            "Row",
            ids=(self.ids, 4),
            mask=(self.mask, 1),
            logprobs=(self.logprobs, 4),
            versions=(self.versions, 4),
            call_of=(self.call_of, 4),
        )


class Accounting(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where every sampled token went: `delivered + sum(left_out) == sampled`."""

    sampled: int = 0
    """Tokens sampled in calls of all attempts, those of failed calls included as far as they were seen."""
    delivered: int = 0
    """Tokens with mask 1 in exactly one row."""
    left_out: dict[LeftOut, int] = {}
    lost_calls: int = 0
    """Calls whose gateway was lost while they were open; what they sampled is not known."""
    resampled: int = 0
    """Of the delivered: tokens of answers that the harness asked again for."""
    reinstated: int = 0
    """Tokens kept in a context although the harness had dropped them."""
    side_calls: int = 0
    failed_calls: int = 0
    calls_without_tools: int = 0
    """Calls whose tools the policy never saw: its chat template renders none."""

    def __post_init__(self) -> None:
        """Refuse books that do not balance."""
        if self.delivered + sum(self.left_out.values()) != self.sampled:
            msg = f"Accounting: delivered {self.delivered} + left out {self.left_out} is not sampled {self.sampled}"
            raise ValueError(msg)


class CallSummary(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call as a time line and a tree need it."""

    call_id: str
    attempt: int
    parent: str | None = None
    """Call id. None: a root."""
    root: RootReason | None = None
    side_call: str | None = None
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    failure: CallFailure | None = None
    undelivered: bool = False
    opened_at: float
    closed_at: float | None = None
    engine_seconds: float = 0.0
    queue_seconds: float = 0.0


class HarnessExit(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the runner reported of the last attempt."""

    cause: ExitCause
    exit_code: int | None = None
    detail: str = ""
    agent_seconds: float = 0.0
    wall_seconds: float = 0.0
    prepare_seconds: float = 0.0
    artifacts: tuple[Artifact, ...] = ()
    reward: float | None = None
    """Given by hand with a recording."""


class TrajectoryBuilt(Event, frozen=True, kw_only=True, tag="trajectory_built.v1"):
    """All rows of one session, with what happened and what was left out. A repeat is the same bytes."""

    session_id: str
    attempt: Annotated[int, Meta(ge=0)]
    spec: SessionSpec
    end: End
    detail: str = ""
    harness_version: str | None = None
    exit: HarnessExit | None = None
    """None: given up before an exit was reported."""
    rows: tuple[Row, ...] = ()
    """Rows with at least one trainable token; none where the end is not trainable, unless the purpose is `collect`."""
    accounting: Accounting = Accounting()
    calls: tuple[CallSummary, ...] = ()
    """Of all attempts, in the order of the log."""
    answer: str | None = None
    """The text of the agent's last message: the last answer, in the order of the log, that was sampled whole and received in the main
    conversation, side calls and sub-agents apart, also where a summary took the place of its history. None: there is none."""
    strategy: Strategy = Strategy.TREE
    rule: int
    """Version of the row rules."""
    rows_digest: Sha256
    doubts: tuple[str, ...] = ()
    """What did not fit: a record missing or damaged, rows unlike the live ones."""
    records: BlobRef | None = None
    """The session's committed records, payloads included: rebuild reads it when the log was trimmed."""
    dispatched_at: float | None = None
    started_at: float | None = None
    sealed_at: float


class TrajectoryScored(Event, frozen=True, kw_only=True, tag="trajectory_scored.v1"):
    """A trajectory with its reward; every session gets one, and the first counts."""

    trajectory: TrajectoryBuilt
    reward: float | None = None
    """None: not graded, see `ungraded`."""
    rewards: dict[str, float] = {}
    """All named numbers of the grader; `reward` is the one named `reward`, or their mean."""
    ungraded: str | None = None
    """Why there is no reward, with the last lines that the tests printed. None: graded."""
    grader: str
    evidence: tuple[Artifact, ...] = ()
    """What the grading left, whether it gave a reward or not. Of the grader `harbor`: `test-stdout.txt` (what the tests printed, stdout and
    stderr together, its middle cut out where it is long), `grading.json` (`exit_code`, `timed_out`, `seconds`, `unread`), `reward.json`
    and `reward.txt` as they were written. Of any grader that crashed: `crash.txt`. Of earlier tries the same below `try-1/`, `try-2/`,
    and `error.txt`, why that try failed."""
    grading_seconds: float = 0.0
    tries: int = 0
    scored_at: float


class Member(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One session of a group."""

    session_id: str
    attempt: int
    """0: none, or not seen yet."""
    end: End | None = None
    """None: not seen yet (early delivery)."""
    left_out: LeftOut | None = None
    """Why none of its tokens are delivered. None: they are."""
    reward: float | None = None
    """None: not graded, not seen yet, or nothing was sampled that the grade could be of."""
    scored: TrajectoryScored | None = None
    """The session itself; where it is left out, without its rows, its tokens counted as left out. None: not seen yet."""


class GroupMerged(Event, frozen=True, kw_only=True, tag="group_merged.v1"):
    """One whole group: every one of its N sessions is named, delivered or with the reason why not."""

    group_id: str
    task_id: str
    run_id: str
    purpose: Purpose
    policy: str
    size: int
    """N."""
    members: tuple[Member, ...]
    """By index; sessions not seen yet at an early delivery are named with `late`."""
    accounting: Accounting
    """Sums over its members after merging."""
    reason: str = ""
    """For people: how many of its sessions are left out, and why. Empty: all that were seen are delivered."""
    merged_at: float


class GroupFailed(Event, frozen=True, kw_only=True, tag="group_failed.v1"):
    """A group that trainers do not get, and why."""

    group_id: str
    task_id: str
    run_id: str
    purpose: Purpose
    policy: str
    size: int
    reason: str
    members: tuple[Member, ...]
    accounting: Accounting
    failed_at: float
