"""Events of the topics `sessions` and `dispatch`: the life of a session, and its model calls.

`SessionStarted` and `HarnessExited` come from runners, `SessionGivenUp` from the scheduler; everything else on `sessions` is
written by the one owner of the partition, in transactions. All fields named `*_at` are Unix seconds, `*_seconds` durations.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from evener.proto.arrays import Float32s, Int32s, JsonText, check_lengths
from evener.proto.blobs import BlobRef, Sha256
from evener.proto.ends import CallFailure, End, ExitCause, LeftOut
from evener.proto.spec import PolicyOptions, Quirks, Sampling, SessionSpec

Attempt = Annotated[int, Meta(ge=1, description="Counts from 1. An attempt ends at AttemptEnded, a higher SessionStarted or the seal.")]


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """Base of all events: a msgpack map whose `type` is the tag, `name.vN`."""


class SessionDispatched(Event, frozen=True, kw_only=True, tag="session_dispatched.v1"):
    """A runner is to start this attempt. One that starts later leaves it to its lease."""

    session_id: str
    attempt: Attempt
    runner_id: str
    dispatched_at: float
    lease_seconds: float
    """Without a sign of it in the runner's heartbeats for so long, the attempt counts as lost."""
    boot_id: str | None = None
    """Of the runner's process: another of the same name leaves the attempt alone. None: written by an older scheduler."""
    spec: SessionSpec


class SessionCancelled(Event, frozen=True, kw_only=True, tag="session_cancelled.v1"):
    """A runner is to end the session's harness, if it runs it."""

    session_id: str
    runner_id: str
    reason: str


class SessionStarted(Event, frozen=True, kw_only=True, tag="session_started.v1"):
    """A runner starts an attempt. It counts if it is the first of its attempt and no higher one has started."""

    session_id: str
    attempt: Attempt
    start_id: str
    """Random, one for each start. Calls and exits under any other are refused."""
    runner_id: str
    dispatched_at: float
    started_at: float
    """By the runner's clock."""
    dispatch_recorded_at: float | None = None
    """Record time of the dispatch. A start whose own record time is more than the start limit after it is void for every reader: both times
    are the log's, whatever clocks scheduler and runner have. None: an older runner wrote it, and `dispatched_at` is compared."""
    harness_version: str | None = None
    """The pinned version of the harness that runs. None: not known (a recording)."""
    quirks: Quirks = Quirks()
    spec: SessionSpec


class Artifact(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file that an attempt or a grading left."""

    name: str
    """`changes.tar` (the changed files), `removed.json` (the removed ones), `left_out.json` (names of what was not kept, with the reasons),
    `harness.log`, ..."""
    blob: BlobRef


class Failures(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Requests of a harness that got no answer for one reason."""

    reason: CallFailure
    count: Annotated[int, Meta(ge=1)]
    detail: str = ""
    """What the last of them was told: of a refusal, it names the field."""


class HarnessExited(Event, frozen=True, kw_only=True, tag="harness_exited.v1"):
    """The harness of an attempt is gone, or could not be started."""

    session_id: str
    attempt: Attempt
    start_id: str
    cause: ExitCause
    exit_code: int | None = None
    """None: it never ran, or was run by somebody else who did not say. Negative: ended by that signal."""
    detail: str = ""
    """For people: what went wrong, the end of its error output."""
    agent_seconds: float = 0.0
    """The agent's clock: queues, waits for an owner and weight updates taken out."""
    wall_seconds: float = 0.0
    prepare_seconds: float = 0.0
    """From the dispatch's arrival to the harness's start."""
    artifacts: tuple[Artifact, ...] = ()
    exited_at: float
    reward: float | None = None
    """A reward given by hand with a recording."""
    unanswered: CallFailure | None = None
    """Why a request of the harness had no answer, where the log may not say it: no owner, a limit of the relay, a gateway that answered
    503 as the log was down. None: all had one, or others did that came afterwards."""
    failures: tuple[Failures, ...] = ()
    """All of its requests that got no answer, also those that no call in the log stands for: what the relay or a gateway refused before
    it was placed. A request that was sent again and answered is none."""


class SessionGivenUp(Event, frozen=True, kw_only=True, tag="session_given_up.v1"):
    """The scheduler starts no further attempt. The owner seals, unless a later attempt than the named one has started."""

    session_id: str
    attempt: Annotated[int, Meta(ge=0)]
    """The last attempt that the scheduler knew of. 0: none."""
    end: End
    detail: str = ""
    given_up_at: float
    spec: SessionSpec
    """So that a session that never started is sealed with all that later stages need."""


class SegmentRef(Struct, frozen=True, kw_only=True):
    """What one choice of a call sampled."""

    call_id: str
    choice: Annotated[int, Meta(ge=0)] = 0


class PathPrefix(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first `length` ids of a known path: the ids that the engine was given at `call_id`, then those of a choice. Storage only."""

    call_id: str
    choice: Annotated[int, Meta(ge=0)] = 0
    length: Annotated[int, Meta(ge=0)]


class MessagePrefix(Struct, frozen=True, kw_only=True):
    """The first `count` messages of what `call_id` was given, then, if `choice` is set, that answer of it. Storage only."""

    call_id: str
    count: Annotated[int, Meta(ge=0)]
    choice: Annotated[int, Meta(ge=0)] | None = None


class RootReason(StrEnum):
    """Why a call extends nothing."""

    FIRST = "first"
    """The first call of a conversation, where it is no sub-agent's; also asked again after a failure."""
    SUB_AGENT = "sub_agent"
    """Its client says so; or the first call of a conversation, with tools, while another one's last answer called tools."""
    COMPACTION = "compaction"
    REWRITTEN = "rewritten"
    """An earlier turn was changed, moved or dropped."""
    TOOLS_CHANGED = "tools_changed"
    THINKING_STRIPPED = "thinking_stripped"
    NO_BRIDGE = "no_bridge"
    """The history matches, but the template cannot be extended here with proof."""
    NO_ANSWER = "no_answer"
    """The history matches no sampled answer (a repeated prompt, a new sample of the first call)."""
    SIDE_CALL = "side_call"
    IDS_DIFFER = "ids_differ"
    """The engine reported other ids than the path holds."""
    FROZEN = "frozen"
    DOUBT = "doubt"


class MatchedBy(StrEnum):
    """What recognised the parent's answer in the history."""

    CALL_ID = "call_id"
    KEY = "key"
    CONTENT = "content"
    TRIMMED = "trimmed"


class BridgedBy(StrEnum):
    """What proved the ids after the parent."""

    RENDERER = "renderer"
    TWO_RENDERS = "two_renders"
    ENGINE = "engine"
    """The engine reported the whole prompt, and it extends the path."""


class Placement(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a call hangs in its session's forest. Either `parent` or `root` is set."""

    rule: int
    """Version of the placement rules."""
    parent: SegmentRef | None = None
    root: RootReason | None = None
    matched_by: MatchedBy | None = None
    """None: a root."""
    bridged_by: BridgedBy | None = None
    """None: a root, rendered in full."""
    altered: bool = False
    """The answer came back changed, within the harness's tolerances."""
    siblings: int = 1
    """Equal answers that it could have been; above 1, the last received was taken."""
    reinstated_tokens: int = 0
    """Tokens of the parent's reasoning that stay in the context although the harness dropped them."""
    prefix: PathPrefix | None = None
    """Of a root: what its given ids leave out, because it is stored already."""
    conversation: str = ""
    """Of a root: names the conversation that it begins or goes on with, its descendants too. Empty: an older gateway wrote it."""


class Fidelity(StrEnum):
    """How we know that the engine conditioned on exactly these ids."""

    FED = "fed"
    """It was given them."""
    MATCHED = "matched"
    """It reported them."""


class CallOpened(Event, frozen=True, kw_only=True, tag="call_opened.v1"):
    """A model call was placed. Committed with its end in `hold`, before the first token leaves in `live`."""

    session_id: str
    attempt: Attempt
    start_id: str
    call_id: str
    request_id: str
    """The relay's; a re-send of the same request has the same."""
    try_number: Annotated[int, Meta(ge=1)] = 1
    """Counts the samplings of one request id, when earlier ones were lost with their gateway."""
    retry_of: str | None = None
    """The call that a transport retry of the harness supersedes: it was lost or aborted, and this one was sampled for it."""
    dialect: str
    """`openai_chat`, `openai_responses`, `anthropic_messages` or `google_generate`."""
    model: str
    """As the harness wrote it."""
    policy: str | None
    """None: a frozen engine answers."""
    engine_id: str
    """Empty: none was free."""
    placement: Placement
    given_ids: Int32s
    """int32[G]: the ids after the parent's sampled ids, or after `placement.prefix`, or all."""
    prompt_tokens: Annotated[int, Meta(ge=0)]
    """Length of the whole context that the engine is given."""
    follows: MessagePrefix | None = None
    """None: `messages` are all."""
    messages: JsonText
    """A JSON array of canonical messages: those after `follows`."""
    message_count: Annotated[int, Meta(ge=0)]
    """Messages of the whole history, `follows` included."""
    tools: JsonText | None = None
    """A JSON array of canonical tool definitions. None: as in the call that `follows` names, or none at all."""
    tool_count: Annotated[int, Meta(ge=0)] = 0
    """Tools that the request offers. 0: none, or an older gateway wrote it."""
    tools_hidden: bool = False
    """It offers tools, and the policy never saw them: its chat template renders none."""
    side_call: str | None = None
    """The name of the signature that it met. None: the agent's own work."""
    sub_agent: bool = False
    """Its client says that a sub-agent asks. False: it does not say so, or an older gateway wrote it."""
    options: PolicyOptions = PolicyOptions()
    sampling: Sampling
    """As really used."""
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    """Tokens that each answer might have: the run's limit, else the harness's, lowered to what was left of context and budget. None: it
    came to no sampling, or an older gateway wrote it."""
    wishes: JsonText = b"{}"
    """A JSON object: the harness's own limits and sampling parameters, what was removed, and unknown harmless fields."""
    cuts: tuple[str, ...] = ()
    """Declared noise that was cut from the recorded messages, each with its place: `messages[0]: ...`."""
    images: tuple[BlobRef, ...] = ()
    """The images of the recorded messages, each as the message part names it by digest."""
    streamed: bool = False
    reasoning_withheld: bool = False
    """The harness did not ask to see reasoning, and its provider would show none: it gets the answers without, and so they come back."""
    n: Annotated[int, Meta(ge=1)] = 1
    body_digest: Sha256
    """Of the canonical request as it was read, before any cut: equal requests have equal digests."""
    opened_at: float


class MaskRange(Struct, frozen=True, kw_only=True):
    """Sampled tokens [start, end) of a choice that are not trained, and why."""

    start: int
    end: int
    reason: LeftOut


class FinishReason(StrEnum):
    """Why sampling stopped."""

    STOP = "stop"
    """End of turn, or a stop string."""
    LENGTH = "length"
    ABORTED = "aborted"


class Choice(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sampled answer. The three arrays describe the same tokens."""

    sampled_ids: Int32s
    """int32[S], the end-of-turn token included where it was sampled."""
    logprobs: Float32s
    """float32[S], natural log, of the sampled token. NaN: not reported."""
    versions: Int32s
    """int32[S]: the policy version that sampled each token. -1: not known."""
    finish_reason: FinishReason
    message: JsonText
    """The canonical assistant message parsed from the ids, tool-call ids included: what the harness was answered."""
    masked: tuple[MaskRange, ...] = ()
    reasoning_tokens: Annotated[int, Meta(ge=0)] = 0
    """Of the sampled tokens: those of the reasoning, its marks included."""
    continued_at: tuple[int, ...] = ()
    """How many tokens there were whenever an engine ended the answer early and it went on: as a request of its own, which was given the
    call's context and all of them. Empty: in one piece."""

    def __post_init__(self) -> None:
        """Refuse arrays of different lengths."""
        check_lengths("Choice", sampled_ids=(self.sampled_ids, 4), logprobs=(self.logprobs, 4), versions=(self.versions, 4))


class CallClosed(Event, frozen=True, kw_only=True, tag="call_closed.v1"):
    """A call ended with what was sampled, answered or aborted. Committed before anything leaves that lets the harness act."""

    session_id: str
    attempt: Attempt
    call_id: str
    request_id: str
    choices: tuple[Choice, ...]
    """One for each answer asked for (n)."""
    fidelity: Fidelity = Fidelity.FED
    placement: Placement | None = None
    """Set where the engine reported the ids: final, instead of CallOpened's."""
    given_ids: Int32s | None = None
    """With `placement`: final, instead of CallOpened's."""
    prompt_tokens: Annotated[int, Meta(ge=0)] | None = None
    """With `placement`: final, instead of CallOpened's."""
    answer_id: str
    """The id in the harness's answer."""
    answer_created: int
    """The time in the harness's answer, Unix seconds."""
    cached_tokens: int | None = None
    """Prompt tokens found in the engine's prefix cache. None: not reported. 0: reported, none found."""
    cut_tokens: int = 0
    """Tokens that its engine sampled when calls at once had spent the session's budget: in none of its choices."""
    queue_seconds: float = 0.0
    """Waits that the agent's clock does not count: admission, engine queue, weight updates."""
    first_token_seconds: float | None = None
    """From opening. None: nothing was sampled, or the engine does not stream."""
    engine_seconds: float = 0.0
    """From sending the request to the engine to its last token."""
    closed_at: float


class CallFailed(Event, frozen=True, kw_only=True, tag="call_failed.v1"):
    """A call ended without an answer."""

    session_id: str
    attempt: Attempt
    call_id: str
    request_id: str
    reason: CallFailure
    detail: str = ""
    status: int
    """HTTP status that the harness was or would have been answered."""
    failed_at: float
    sampled_tokens: Annotated[int, Meta(ge=0)] = 0
    """Tokens that were seen of all its answers. A number will do: nobody trains on them, and the books need no more."""


class CallUndelivered(Event, frozen=True, kw_only=True, tag="call_undelivered.v1"):
    """The relay says that the harness left before the answer of a closed call was through."""

    session_id: str
    attempt: Attempt
    call_id: str
    request_id: str
    """The call's own, or that of a transport retry that got its answer."""
    undelivered_at: float


class CallDelivered(Event, frozen=True, kw_only=True, tag="call_delivered.v1"):
    """A transport retry of the harness gets the answer of a call that another request opened: that answer is received by it."""

    session_id: str
    attempt: Attempt
    call_id: str
    request_id: str
    """Of the retry."""
    delivered_at: float


class AttemptEnded(Event, frozen=True, kw_only=True, tag="attempt_ended.v1"):
    """An attempt ended in a way that another may mend. Its sampled tokens are never trained."""

    session_id: str
    attempt: Attempt
    end: End
    detail: str = ""
    ended_at: float


class SessionSealed(Event, frozen=True, kw_only=True, tag="session_sealed.v1"):
    """The session ended for ever: the first seal counts, and what comes later under this session is void."""

    session_id: str
    attempt: Annotated[int, Meta(ge=0)]
    """The last attempt. 0: none ever started."""
    end: End
    detail: str = ""
    rows_digest: Sha256
    """Of the live rows (`evener.tokens.rows.digest`): the reconstructor compares."""
    calls: int
    """Closed calls of all attempts."""
    sampled_tokens: int
    """Tokens sampled in them, and in failed ones."""
    sealed_at: float
    fingerprints: bytes | None = None
    """8 bytes for each sampled segment of all attempts (`evener.tokens.doubts.fingerprints`): what a reader holds otherwise is in doubt.

    None: sealed before there were any; then either all rows are as the digest says, or none is certain.
    """
    spec: SessionSpec | None = None
    """As the owner knows it, for a reader that lacks the start. None: sealed before it was noted."""
    rule: int = 1
    """Version of the row rules that `rows_digest` is of: rows of other rules are not compared with it."""
