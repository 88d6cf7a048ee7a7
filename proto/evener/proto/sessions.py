"""Events of the topics `sessions` and `dispatch`: the life of a session, and its model calls.

Runners write `SessionStarted` and `HarnessExited`, the scheduler writes `SessionGivenUp`. The owner of the partition alone writes
everything else on `sessions`, in transactions. Fields named `*_at` are Unix seconds, fields named `*_seconds` are durations.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from evener.proto.arrays import Float32s, Int32s, JsonText, check_lengths
from evener.proto.blobs import BlobRef, Sha256
from evener.proto.reasons import CallFailure, ExclusionReason, ExitCause, TerminationReason
from evener.proto.spec import PolicyOptions, Quirks, Sampling, SessionSpec

Attempt = Annotated[int, Meta(ge=1, description="Counts from 1. An attempt ends at AttemptEnded, a higher SessionStarted or the seal.")]


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """The base of all events: a msgpack map whose `type` is the tag, `name.vN`."""


class AttemptEvent(Event, frozen=True, kw_only=True):
    """The base of the events of an attempt."""

    session_id: str
    attempt: Attempt


class SessionDispatched(AttemptEvent, frozen=True, kw_only=True, tag="session_dispatched.v1"):
    """The scheduler asks a runner to start this attempt. A runner that starts too late leaves the attempt to its lease."""

    runner_id: str
    dispatched_at: float
    lease_seconds: float
    """The attempt counts as lost when the runner's heartbeats have not mentioned it for this time."""
    boot_id: str | None = None
    """The runner process that was chosen. Another process of the same name ignores the event. None: an older scheduler wrote this."""
    spec: SessionSpec


class SessionCancelled(Event, frozen=True, kw_only=True, tag="session_cancelled.v1"):
    """The scheduler asks a runner to end the session's harness, if that runner runs it."""

    session_id: str
    runner_id: str
    reason: str


class SessionStarted(AttemptEvent, frozen=True, kw_only=True, tag="session_started.v1"):
    """A runner starts an attempt. The event counts if it is the first of its attempt and no later attempt has started."""

    start_id: str
    """A random id of this start. Calls and exits under any other start id are refused."""
    runner_id: str
    dispatched_at: float
    started_at: float
    """The time by the runner's clock."""
    dispatch_recorded_at: float | None = None
    """The record time of the dispatch. A start whose own record time is later by more than the start limit is void for every reader. Both
    times come from the log, so the clocks of scheduler and runner do not matter. None: an older runner wrote this, and `dispatched_at` is
    compared instead."""
    harness_version: str | None = None
    """The pinned version of the harness that runs. None: the version is not known (a recording)."""
    quirks: Quirks = Quirks()
    spec: SessionSpec


class Artifact(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file that an attempt or a grading left behind."""

    name: str
    """The file's name: `changes.tar` (the changed files), `removed.json` (the removed ones), `replaced.json` (those changed ones that were
    there before), `excluded.json` (the names of files that were not kept, with the reasons), `harness.log`, ..."""
    blob: BlobRef


class Failures(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The requests of a harness that got no answer for one reason."""

    reason: CallFailure
    count: Annotated[int, Meta(ge=1)]
    detail: str = ""
    """The answer to the last of these requests. For a refusal, it names the field."""


class HarnessExited(AttemptEvent, frozen=True, kw_only=True, tag="harness_exited.v1"):
    """The harness of an attempt exited, or could not be started."""

    start_id: str
    cause: ExitCause
    exit_code: int | None = None
    """The exit code of the harness; negative if that signal ended it. None: the harness never ran, or its exit code is unknown."""
    detail: str = ""
    """What went wrong, in words: the end of the harness's error output."""
    agent_seconds: float = 0.0
    """The time on the agent's clock, which excludes queues, waits for an owner and weight updates."""
    wall_seconds: float = 0.0
    prepare_seconds: float = 0.0
    """The time from the arrival of the dispatch to the start of the harness."""
    artifacts: tuple[Artifact, ...] = ()
    exited_at: float
    reward: float | None = None
    """The reward that the user gave by hand with a recording."""
    unanswered: CallFailure | None = None
    """Why a request of the harness had no answer, where the log may not say so: there was no owner, the relay reached a limit, or a gateway
    answered 503 because the log was down. None: there was no such request."""
    later_requests: tuple[str, ...] = ()
    """The requests that came after that one had failed, at most the last 100: what the log says of them shows whether the agent went on."""
    failures: tuple[Failures, ...] = ()
    """All requests of the harness that got no answer, including those that the relay or a gateway refused before the log had a call for
    them. A request that was sent again and answered does not count."""


class SessionGivenUp(Event, frozen=True, kw_only=True, tag="session_given_up.v1"):
    """The scheduler starts no further attempt. The owner seals the session unless a later attempt than the named one has started."""

    session_id: str
    attempt: Annotated[int, Meta(ge=0)]
    """The last attempt that the scheduler knew of. 0: there was none."""
    termination_reason: TerminationReason
    detail: str = ""
    given_up_at: float
    spec: SessionSpec
    """The session's spec, so that a session that never started can be sealed with everything that later stages need."""


class SegmentRef(Struct, frozen=True, kw_only=True):
    """The tokens that one choice of a call sampled."""

    call_id: str
    choice: Annotated[int, Meta(ge=0)] = 0


class PathPrefix(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first `length` ids of a known path: the prompt ids of `call_id`, then the ids of a choice. Used for storage only."""

    call_id: str
    choice: Annotated[int, Meta(ge=0)] = 0
    length: Annotated[int, Meta(ge=0)]


class MessagePrefix(Struct, frozen=True, kw_only=True):
    """The first `count` messages of the history of `call_id`, followed by its answer `choice` if that is set. Used for storage only."""

    call_id: str
    count: Annotated[int, Meta(ge=0)]
    choice: Annotated[int, Meta(ge=0)] | None = None


class RootReason(StrEnum):
    """Why a call does not extend an earlier one."""

    FIRST = "first"
    """The call is the first of a conversation that is not a sub-agent's, or repeats that call after a failure."""
    SUB_AGENT = "sub_agent"
    """The client says that a sub-agent asks; or the call is the first of a conversation, offers tools, and another conversation's last
    answer called tools."""
    COMPACTION = "compaction"
    REWRITTEN = "rewritten"
    """The harness changed, moved or dropped an earlier turn."""
    TOOLS_CHANGED = "tools_changed"
    THINKING_STRIPPED = "thinking_stripped"
    NO_BRIDGE = "no_bridge"
    """The history matches, but the template cannot be extended at this point with proof."""
    NO_ANSWER = "no_answer"
    """The history matches no sampled answer: a repeated prompt, or a new sample of the first call."""
    SIDE_CALL = "side_call"
    IDS_DIFFER = "ids_differ"
    """The engine reported ids that differ from those of the path."""
    INCONSISTENT = "inconsistent"


class MatchedBy(StrEnum):
    """How the parent's answer was recognised in the history."""

    CALL_ID = "call_id"
    KEY = "key"
    CONTENT = "content"
    TRIMMED = "trimmed"


class BridgedBy(StrEnum):
    """How the ids after the parent were proven."""

    RENDERER = "renderer"
    TWO_RENDERS = "two_renders"
    ENGINE = "engine"
    """The engine reported the whole prompt, which extends the path."""


class Placement(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The place of a call in its session's forest. Either `parent` or `root` is set."""

    rule: int
    """The version of the placement rules."""
    parent: SegmentRef | None = None
    root: RootReason | None = None
    matched_by: MatchedBy | None = None
    """How the parent's answer was recognised. None: the call is a root."""
    bridged_by: BridgedBy | None = None
    """How the ids after the parent were proven. None: the call is a root, which was rendered in full."""
    altered: bool = False
    """Whether the answer came back changed, within the tolerances of the harness."""
    siblings: int = 1
    """The number of equal answers that the history could mean. Above 1, the answer that was received last is the parent."""
    reinstated_tokens: int = 0
    """The number of tokens of the parent's reasoning that stay in the context although the harness dropped them."""
    prefix: PathPrefix | None = None
    """For a root: the beginning of its prompt that is stored already, and that its ids therefore omit."""
    conversation: str = ""
    """For a root: the conversation that it begins or continues; its descendants belong to it too. Empty: an older gateway wrote this."""


class Fidelity(StrEnum):
    """How we know that the engine conditioned on exactly these ids."""

    FED = "fed"
    """The engine was given these ids."""
    MATCHED = "matched"
    """The engine reported these ids."""


class CallOpened(AttemptEvent, frozen=True, kw_only=True, tag="call_opened.v1"):
    """A model call was placed. In `buffered` mode it is committed with the call's end, in `live` mode before the first token leaves."""

    start_id: str
    call_id: str
    request_id: str
    """The relay's id of the request. A re-sent request keeps its id."""
    try_number: Annotated[int, Meta(ge=1)] = 1
    """Counts the samplings of one request id, if earlier ones were lost with their gateway."""
    retry_of: str | None = None
    """The call that this one replaces, because the harness retried the request: the earlier call was lost or aborted."""
    dialect: str
    """The wire format: `openai_chat`, `openai_responses`, `anthropic_messages` or `google_generate`."""
    model: str
    """The model name that the harness sent."""
    policy: str | None
    """The policy that samples. None: a frozen engine answers."""
    engine_id: str
    """The engine that samples. Empty: no engine was free."""
    placement: Placement
    prompt_delta_ids: Int32s
    """int32[G]: the prompt ids that follow the parent's sampled ids or `placement.prefix`, or all of them if there is neither."""
    prompt_tokens: Annotated[int, Meta(ge=0)]
    """The length of the whole context that the engine is given."""
    history_base: MessagePrefix | None = None
    """The earlier messages that this history begins with. None: `messages` is the whole history."""
    messages: JsonText
    """A JSON array of the canonical messages that follow `history_base`."""
    message_count: Annotated[int, Meta(ge=0)]
    """The number of messages in the whole history, those of `history_base` included."""
    tools: JsonText | None = None
    """A JSON array of canonical tool definitions. None: the same tools as in the call that `history_base` names, or no tools at all."""
    tool_count: Annotated[int, Meta(ge=0)] = 0
    """The number of tools that the request offers. 0: none, or an older gateway wrote this."""
    tools_hidden: bool = False
    """Whether the request offers tools that the policy never saw, because its chat template does not render tools."""
    side_call: str | None = None
    """The name of the side-call signature that the request matches. None: the call is the agent's own work."""
    sub_agent: bool = False
    """Whether the client says that a sub-agent asks. False: it does not, or an older gateway wrote this."""
    step: Annotated[int, Meta(ge=0)] = 0
    """The number of the task's step that ran, from 1. 0: the task has no steps, or an older gateway wrote this."""
    marks: tuple[str, ...] = ()
    """The names of the request's headers that may mark a retry or a sub-agent, whether the harness's quirks declare them or not."""
    options: PolicyOptions = PolicyOptions()
    sampling: Sampling
    """The sampling parameters that the engine was given."""
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    """The largest number of tokens that each answer could have: the run's limit, otherwise the harness's, lowered to what was left of the
    context and the budget. None: nothing was sampled, or an older gateway wrote this."""
    requested_params: JsonText = b"{}"
    """A JSON object: the limits and sampling parameters that the harness asked for, what was removed from the request, and unknown harmless
    fields. If they have more than 64 Ki characters: `{"omitted": {"characters": ..., "names": [...]}}`, with the first 20 names."""
    cuts: tuple[str, ...] = ()
    """The declared noise that was cut from the recorded messages, each with its place: `messages[0]: ...`."""
    images: tuple[BlobRef, ...] = ()
    """The images of the recorded messages. Each message part names its image by digest."""
    streamed: bool = False
    reasoning_withheld: bool = False
    """Whether the harness gets its answers without reasoning, because it did not ask for reasoning and its provider would show none. Its
    history then comes back without reasoning too."""
    n: Annotated[int, Meta(ge=1)] = 1
    body_digest: Sha256
    """The digest of the canonical request as it was read, before any cut. Equal requests have equal digests."""
    opened_at: float


class MaskRange(Struct, frozen=True, kw_only=True):
    """The sampled tokens [start, end) of a choice that are not trained, and why."""

    start: int
    end: int
    reason: ExclusionReason


class FinishReason(StrEnum):
    """Why sampling stopped."""

    STOP = "stop"
    """The model ended its turn, or sampled a stop string."""
    LENGTH = "length"
    ABORTED = "aborted"


class Choice(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sampled answer. The three arrays describe the same tokens."""

    sampled_ids: Int32s
    """int32[S]: the sampled ids, including the end-of-turn token if it was sampled."""
    logprobs: Float32s
    """float32[S]: the natural logarithm of each sampled token's probability. NaN: the engine did not report it."""
    versions: Int32s
    """int32[S]: the policy version that sampled each token. -1: the version is not known."""
    finish_reason: FinishReason
    message: JsonText
    """The canonical assistant message, parsed from the ids, with tool-call ids: what the harness was answered."""
    masked: tuple[MaskRange, ...] = ()
    reasoning_tokens: Annotated[int, Meta(ge=0)] = 0
    """The number of sampled tokens that belong to the reasoning, its delimiters included."""
    continued_at: tuple[int, ...] = ()
    """The number of tokens so far each time that an engine ended the answer early and another request continued it, which was given the
    call's context and all of these tokens. Empty: one request sampled the whole answer."""

    def __post_init__(self) -> None:
        """Refuse arrays of different lengths."""
        check_lengths("Choice", sampled_ids=(self.sampled_ids, 4), logprobs=(self.logprobs, 4), versions=(self.versions, 4))


class CallClosed(AttemptEvent, frozen=True, kw_only=True, tag="call_closed.v1"):
    """A call ended with sampled tokens, answered or aborted. The event is committed before anything leaves that lets the harness act."""

    call_id: str
    request_id: str
    choices: tuple[Choice, ...]
    """One choice for each answer asked for (n)."""
    fidelity: Fidelity = Fidelity.FED
    placement: Placement | None = None
    """The final placement, if the engine reported the ids. It replaces that of CallOpened."""
    prompt_delta_ids: Int32s | None = None
    """The final ids, set with `placement`. They replace those of CallOpened."""
    prompt_tokens: Annotated[int, Meta(ge=0)] | None = None
    """The final length of the context, set with `placement`. It replaces that of CallOpened."""
    answer_id: str
    """The id in the answer to the harness."""
    answer_created: int
    """The time in the answer to the harness, in Unix seconds."""
    cached_tokens: int | None = None
    """The number of prompt tokens found in the engine's prefix cache. None: not reported. 0: reported, and none were found."""
    cut_tokens: int = 0
    """The number of tokens that the engine sampled after concurrent calls had spent the session's budget. They are in no choice."""
    queue_seconds: float = 0.0
    """Waiting time that the agent's clock does not count: admission, the engine's queue, weight updates."""
    first_token_seconds: float | None = None
    """The time from opening the call to its first token. None: nothing was sampled, or the engine does not stream."""
    engine_seconds: float = 0.0
    """The time from sending the request to the engine to its last token."""
    closed_at: float


class CallFailed(AttemptEvent, frozen=True, kw_only=True, tag="call_failed.v1"):
    """A call ended without an answer."""

    call_id: str
    request_id: str
    reason: CallFailure
    detail: str = ""
    status: int
    """The HTTP status that the harness was, or would have been, answered."""
    failed_at: float
    sampled_tokens: Annotated[int, Meta(ge=0)] = 0
    """The number of tokens seen of all answers. The ids are not kept: nobody trains on them, and the accounting needs only their number."""


class CallUndelivered(AttemptEvent, frozen=True, kw_only=True, tag="call_undelivered.v1"):
    """The relay reports that the harness disconnected before the answer of a closed call was delivered."""

    call_id: str
    request_id: str
    """The call's own request, or a transport retry that got its answer."""
    undelivered_at: float


class CallDelivered(AttemptEvent, frozen=True, kw_only=True, tag="call_delivered.v1"):
    """A transport retry of the harness gets the answer of a call that another request opened. The retry thereby receives that answer."""

    call_id: str
    request_id: str
    """The request id of the retry."""
    delivered_at: float


class AttemptEnded(AttemptEvent, frozen=True, kw_only=True, tag="attempt_ended.v1"):
    """An attempt ended in a way that another attempt may mend. Its sampled tokens are never trained."""

    termination_reason: TerminationReason
    detail: str = ""
    ended_at: float


class SessionSealed(Event, frozen=True, kw_only=True, tag="session_sealed.v1"):
    """The session ended for good. The first seal counts, and later events of the session are void."""

    session_id: str
    attempt: Annotated[int, Meta(ge=0)]
    """The last attempt. 0: none ever started."""
    termination_reason: TerminationReason
    detail: str = ""
    rows_digest: Sha256
    """The digest of the gateway's own rows (`evener.tokens.rows.digest`), with which the reconstructor compares its rows."""
    calls: int
    """The number of closed calls in all attempts."""
    sampled_tokens: int
    """The number of tokens sampled in these calls and in failed ones."""
    sealed_at: float
    fingerprints: bytes | None = None
    """8 bytes for each sampled segment of all attempts (`evener.tokens.inconsistencies.fingerprints`). A segment that a reader holds with
    other content is inconsistent.

    None: the session was sealed before there were fingerprints. Then either all rows match the digest, or none is certain.
    """
    spec: SessionSpec | None = None
    """The spec as the owner knows it, for a reader that lacks the start. None: the session was sealed before the seal carried it."""
    rule: int = 1
    """The version of the row rules behind `rows_digest`. Rows of other rules are not compared with it."""


DispatchEvent = SessionDispatched | SessionCancelled
SessionEvent = (
    SessionStarted
    | HarnessExited
    | SessionGivenUp
    | CallOpened
    | CallClosed
    | CallFailed
    | CallUndelivered
    | CallDelivered
    | AttemptEnded
    | SessionSealed
)
