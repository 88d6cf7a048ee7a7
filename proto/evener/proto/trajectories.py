"""Events of `trajectories.built`, `.scored`, `.merged` and `.kept`: from rows to groups."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from evener.proto.arrays import Float32s, Int32s, Uint8s, check_lengths
from evener.proto.blobs import BlobRef, Sha256
from evener.proto.reasons import CallFailure, ExclusionReason, ExitCause, TerminationReason
from evener.proto.sessions import Artifact, Event, Failures, Fidelity, FinishReason, RootReason
from evener.proto.spec import Consequence, Detector, PolicyOptions, Purpose, Sampling, SessionSpec, Strategy


class RowKind(StrEnum):
    """The role of a row in its session."""

    MAIN = "main"
    """The agent's own row: of the main conversation's rows that hold its first call, the one with the most calls."""
    BRANCH = "branch"
    """Another row of the main conversation."""
    SUB_AGENT = "sub_agent"
    """A row of a conversation that began while an agent waited for its result."""
    COMPACTION = "compaction"
    """A row that begins with a summary in place of the history."""
    CONVERSATION = "conversation"
    """A row of another conversation, for whose result no agent waited: a title, or another prompt of the same program."""


class Row(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One branch as a training sample: T tokens, five arrays of length T."""

    ids: Int32s
    loss_mask: Uint8s
    """uint8[T]. 1: the token was sampled, is trainable, and is not trained by an earlier row."""
    logprobs: Float32s
    """float32[T]: the natural logarithm of each sampled token's probability, also where the loss mask is 0. NaN: not sampled, or not
    reported."""
    versions: Int32s
    """int32[T]: the policy version of each sampled token. -1: not sampled, or not known."""
    call_of: Int32s
    """int32[T]: the index in `calls` of the call that sampled the token. -1: not sampled."""
    calls: tuple[str, ...]
    """The call ids along the branch, root first."""
    prompt_length: Annotated[int, Meta(ge=0)]
    """The number of tokens before the first sampled one."""
    kind: RowKind
    root: RootReason
    fidelity: Fidelity
    """`fed` if every call of the branch is `fed`, otherwise `matched`."""
    finish_reason: FinishReason
    """The finish reason of the last sampled segment."""
    policy: str
    """The policy whose tokens are trained."""
    options: PolicyOptions = PolicyOptions()
    sampling: Sampling
    """The sampling parameters of the branch's last call."""

    def __post_init__(self) -> None:
        """Refuse arrays of different lengths."""
        check_lengths(
            "Row",
            ids=(self.ids, 4),
            mask=(self.loss_mask, 1),
            logprobs=(self.logprobs, 4),
            versions=(self.versions, 4),
            call_of=(self.call_of, 4),
        )


class Accounting(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where every sampled token went: `delivered + sum(excluded) == sampled`."""

    sampled: int = 0
    """The number of tokens sampled in calls of all attempts. Failed calls count as far as their tokens were seen."""
    delivered: int = 0
    """The number of tokens that exactly one row trains (loss mask 1)."""
    excluded: dict[ExclusionReason, int] = {}
    lost_calls: int = 0
    """The number of calls whose gateway was lost while they were open, so that nobody knows how many tokens they sampled."""
    resampled: int = 0
    """The number of delivered tokens in answers that the harness asked for again."""
    reinstated: int = 0
    """The number of tokens kept in a context although the harness had dropped them."""
    side_calls: int = 0
    failed_calls: int = 0
    calls_without_tools: int = 0
    """The number of calls whose tools the policy never saw, because its chat template does not render tools."""

    def __post_init__(self) -> None:
        """Refuse an accounting that does not balance."""
        if self.delivered + sum(self.excluded.values()) != self.sampled:
            msg = f"Accounting: delivered {self.delivered} + excluded {self.excluded} is not sampled {self.sampled}"
            raise ValueError(msg)


class CallSummary(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The facts of a call that a time line and a tree need."""

    call_id: str
    attempt: int
    parent: str | None = None
    """The parent's call id. None: the call is a root."""
    root: RootReason | None = None
    side_call: str | None = None
    frozen: bool = False
    """Whether a frozen engine answers, so that the call is not the policy's."""
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    failure: CallFailure | None = None
    undelivered: bool = False
    opened_at: float
    closed_at: float | None = None
    engine_seconds: float = 0.0
    queue_seconds: float = 0.0


class HarnessExit(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the runner reported about the last attempt."""

    cause: ExitCause
    exit_code: int | None = None
    detail: str = ""
    agent_seconds: float = 0.0
    wall_seconds: float = 0.0
    prepare_seconds: float = 0.0
    artifacts: tuple[Artifact, ...] = ()
    reward: float | None = None
    """The reward that the user gave by hand with a recording."""
    failures: tuple[Failures, ...] = ()
    """All requests of the harness that got no answer, also those for which the log has no call."""


class TrajectoryBuilt(Event, frozen=True, kw_only=True, tag="trajectory_built.v1"):
    """All rows of one session, with what happened and which tokens were excluded. Building it again gives the same bytes."""

    session_id: str
    attempt: Annotated[int, Meta(ge=0)]
    spec: SessionSpec
    termination_reason: TerminationReason
    detail: str = ""
    harness_version: str | None = None
    exit: HarnessExit | None = None
    """How the harness exited. None: the session was given up before an exit was reported."""
    rows: tuple[Row, ...] = ()
    """The rows that have at least one trainable token. A session that is not trainable has no rows, unless its purpose is `collect`."""
    versions: tuple[int, ...] = ()
    """The policy versions of the trainable tokens of all rows, each once, in rising order: staleness is judged without reading an array."""
    accounting: Accounting = Accounting()
    calls: tuple[CallSummary, ...] = ()
    """The calls of all attempts, in the order of the log."""
    answer: str | None = None
    """The text of the agent's last message: the last answer, in the order of the log, that was sampled whole and received in the main
    conversation. Side calls and sub-agents do not count; answers after a compaction do. None: there is no such answer."""
    strategy: Strategy = Strategy.TREE
    rule: int
    """The version of the row rules."""
    rows_digest: Sha256
    inconsistencies: tuple[str, ...] = ()
    """What did not fit: records that are missing or damaged, or rows that differ from the gateway's."""
    records: BlobRef | None = None
    """The session's committed records with their payloads. A rebuild reads them if the log was trimmed."""
    dispatched_at: float | None = None
    started_at: float | None = None
    sealed_at: float


class Flag(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sign of reward hacking, with the evidence."""

    detector: Detector
    consequence: Consequence = Consequence.FLAG
    """What the task wants to follow from it: `flag` or `fail`."""
    call_id: str | None = None
    """The call whose answer shows it. None: a changed file does."""
    where: str = ""
    """The tool that the agent called, or the changed file."""
    excerpt: str
    """The text that shows it, at most 300 characters."""


class TrajectoryScored(Event, frozen=True, kw_only=True, tag="trajectory_scored.v1"):
    """A trajectory with its reward. Every session gets one, and the first that is not pending counts."""

    trajectory: TrajectoryBuilt
    pending: bool = False
    """Whether the sessions of its group are graded together as soon as all are here: another score follows, and this one does not count."""
    reward: float | None = None
    """The reward. None: the session was not graded, and `ungraded` says why."""
    rewards: dict[str, float] = {}
    """All numbers that the grader named. `reward` is the one named `reward`, or their mean."""
    call_rewards: dict[str, float] = {}
    """Rewards of single calls (process rewards), by call id. Calls without one are not in it."""
    ungraded: str | None = None
    """Why there is no reward, with the last lines that the tests printed. None: the session was graded."""
    grader: str
    evidence: tuple[Artifact, ...] = ()
    """What the grading left, with or without a reward. For every grader: `inputs.json` (what was graded). For the grader `harbor`:
    `test-stdout.txt` (what the tests printed, stdout and stderr together, cut in the middle if it is long), `grading.json` (`exit_code`,
    `timed_out`, `seconds`, `unread`), and `reward.json` and `reward.txt` as the tests wrote them. For a grader that crashed: `crash.txt`.
    Earlier tries left the same below `try-1/`, `try-2/`, with `error.txt`, which says why the try failed."""
    flags: tuple[Flag, ...] = ()
    """Signs of reward hacking in the agent's calls and changed files, at most 5 for each detector."""
    unwatched: str | None = None
    """Why the detectors could not look at all of the session. None: they did, or it was not to be graded."""
    grading_seconds: float = 0.0
    tries: int = 0
    scored_at: float


class Member(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One session of a group."""

    session_id: str
    attempt: int
    """The session's last attempt. 0: there was none, or the session was not seen yet."""
    termination_reason: TerminationReason | None = None
    """Why the session ended. None: it was not seen yet (early delivery)."""
    excluded: ExclusionReason | None = None
    """Why none of the session's tokens are delivered. None: they are delivered."""
    reward: float | None = None
    """The session's reward. None: it was not graded or not seen yet, or nothing was sampled that the grade could be of."""
    scored: TrajectoryScored | None = None
    """The session itself. If the session is excluded, it comes without its rows, and its tokens count as excluded. None: not seen yet."""


class GroupEvent(Event, frozen=True, kw_only=True):
    """The base of the events of a group."""

    group_id: str
    task_id: str
    run_id: str
    team: str = ""
    """The team of the principal that submitted the task. Empty: it was submitted before there were teams."""
    purpose: Purpose
    policy: str
    size: int
    """N: the number of sessions in the group."""


class GroupMerged(GroupEvent, frozen=True, kw_only=True, tag="group_merged.v1"):
    """One whole group. Each of its N sessions is named, and either delivered or excluded with a reason."""

    members: tuple[Member, ...]
    """The sessions by index. Those that an early delivery did not wait for are named with the reason `late`."""
    accounting: Accounting
    """The sums over the members after merging."""
    reason: str = ""
    """How many sessions are excluded, and why, in words. Empty: all sessions that were seen are delivered."""
    merged_at: float


class GroupFailed(GroupEvent, frozen=True, kw_only=True, tag="group_failed.v1"):
    """A group that trainers do not get, and the reason: too few of its sessions were usable, or a rule of its run dropped it."""

    reason: str
    members: tuple[Member, ...]
    accounting: Accounting
    dropped_by: str | None = None
    """The name of the rule that dropped the group, such as `zero_variance`. None: the group failed."""
    failed_at: float


GroupOutcome = GroupMerged | GroupFailed
"""How a group ended."""
