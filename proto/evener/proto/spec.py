"""The options of a run, as every stage of a session needs them. SessionStarted carries them whole.

All classes here are frozen Structs without a tag: they are parts of events, not events.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta, Struct

from evener.proto.blobs import BlobRef, Sha256
from evener.proto.reasons import ExclusionReason

Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0)]


class Purpose(StrEnum):
    """What the groups of a task are for. Only `train` reaches trainers."""

    TRAIN = "train"
    EVAL = "eval"
    COLLECT = "collect"


class Streaming(StrEnum):
    """When a streamed answer leaves."""

    BUFFERED = "buffered"
    """The whole answer leaves after the commit. Until then the relay keeps the harness waiting with harmless protocol events."""
    LIVE = "live"
    """Text and reasoning leave as they are sampled; what lets a harness act leaves after the commit."""


class Thinking(StrEnum):
    """What happens to the reasoning of earlier turns."""

    TEMPLATE = "template"
    """The model's chat template decides. Where it strips reasoning, a new root starts."""
    ALL = "all"
    """All reasoning is kept."""


class Reasoning(StrEnum):
    """What a harness gets when it sends back a turn without its reasoning."""

    AS_SENT = "as_sent"
    """The same as with plain serving: the reasoning is gone."""
    REINSTATE = "reinstate"
    """The tokens that were sampled, reasoning included."""


class Strategy(StrEnum):
    """How rows are cut from a session's forest."""

    TREE = "tree"
    """One row for each root-to-leaf path. A sampled token is trained in the first row that holds it."""
    PER_CALL = "per_call"
    """One row for each call, for comparison."""


class PolicyOptions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The options of a policy's rendering, recorded in every row."""

    thinking: Thinking = Thinking.TEMPLATE
    reasoning: Reasoning = Reasoning.REINSTATE


class Sampling(Struct, frozen=True, kw_only=True):
    """The complete sampling parameters. Every field is sent to the engine, so that no default of the engine applies.

    The defaults sample from the model's own distribution, whose logprobs engines report.
    """

    temperature: Annotated[float, Meta(ge=0, le=100)] = 1.0
    """The temperature. 0: greedy."""
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """The nucleus sampling threshold. 1: off."""
    top_k: Annotated[int, Meta(ge=0)] = 0
    """The number of most likely tokens to sample from. 0: off."""
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """The least probability of a token, relative to the most likely one. 0: off."""
    max_tokens: Count | None = None
    """The largest number of tokens in an answer. None: what the harness asks for, or the context that is left."""
    seed: int | None = None
    """The seed of the run. Each call derives a seed of its own from it, so that repeated prompts differ. None: the engine draws one."""


class Budgets(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits of a session. None means no limit. A session that spends a budget ends for that reason; it is graded and trainable."""

    agent_seconds: Annotated[float, Meta(gt=0)] | None = None
    """The limit of the agent's clock, which counts the harness's own time and sampling, but not queues, owners or weight updates."""
    wall_seconds: Annotated[float, Meta(gt=0)] | None = None
    """The time since the first start of the harness in an attempt. All waits count, also those that are not the agent's doing."""
    tokens: Count | None = None
    """The number of sampled tokens."""
    calls: Count | None = None
    """The number of model calls."""
    turns: Count | None = None
    """The number of calls that extend their parent, plus one."""
    repeats: Count | None = None
    """How often in a row the same tool call may have the same result before it counts as a loop."""
    attempts: Count = 3
    """The number of starts of a session, including those lost to infrastructure faults."""
    deadline_seconds: Annotated[float, Meta(gt=0)] | None = None
    """The time from the first dispatch until the session is given up."""


class Tolerance(StrEnum):
    """A difference between a sampled answer and its copy in the history that does not make it another answer."""

    NUMBERS_LOOSE = "numbers_loose"
    """1.0 equals 1, and long integers may lose digits."""
    TEXT_TRIMMED = "text_trimmed"
    BLANK_TEXT_ABSENT = "blank_text_absent"
    REASONING_ABSENT = "reasoning_absent"
    CALL_ID_LETTERS = "call_id_letters"
    """Tool-call ids are compared by their letters and digits only."""
    CALL_IDS_ABSENT = "call_ids_absent"
    """Tool calls come back without their ids (as ""), and are recognised by name and arguments."""


NOISY_ROLES: Final = ("system", "tool", "user")


class Noise(Struct, frozen=True, kw_only=True):
    """Text of a harness that varies without meaning. It is cut from what is compared and rendered, and the cut is recorded."""

    where: str
    """The role of the messages that contain the noise: `system`, `tool` or `user`."""
    pattern: str
    """A regular expression. The text that it matches is cut."""

    def __post_init__(self) -> None:
        """Refuse a role that can have no noise."""
        if self.where not in NOISY_ROLES:
            msg = f"where is {self.where!r}, not one of {', '.join(NOISY_ROLES)}"
            raise ValueError(msg)


class SideCall(Struct, frozen=True, kw_only=True):
    """How to recognise a call that is not the agent's work. All given conditions must hold."""

    name: str
    """The kind of side call: `title`, `memory`, `router`, ..."""
    system: str | None = None
    """A regular expression that is searched in the first system message."""
    last: str | None = None
    """A regular expression that is searched in the last message."""
    tools: bool | None = None
    """Whether the request offers tools. None: either."""

    def __post_init__(self) -> None:
        """Refuse a signature without any condition."""
        if self.system is None and self.last is None and self.tools is None:
            msg = f"side call {self.name!r} has no condition: give system, last or tools"
            raise ValueError(msg)


class Quirks(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The peculiarities of a harness, as data: declared in its folder or given with a run, and carried in SessionStarted."""

    tolerances: tuple[Tolerance, ...] = ()
    noise: tuple[Noise, ...] = ()
    side_calls: tuple[SideCall, ...] = ()
    retry_header: str | None = None
    """The header (lower case) in which the harness's client counts its transport retries, from 1."""
    compacted: str | None = None
    """A regular expression that is searched in the user message which replaces a compacted history."""
    sub_agent_header: str | None = None
    """The header (lower case) that requests of sub-agents carry. None: only their prompts tell them apart."""

    def patterns(self) -> Iterator[tuple[str, str]]:
        """Yield the place and the text of every regular expression. None is compiled: the log's readers decode quirks too."""
        for number, noise in enumerate(self.noise):
            yield f"noise[{number}].pattern", noise.pattern
        for number, call in enumerate(self.side_calls):
            for name, pattern in (("system", call.system), ("last", call.last)):
                if pattern is not None:
                    yield f"side_calls[{number}].{name}", pattern
        if self.compacted is not None:
            yield "compacted", self.compacted


class HarnessSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The agent program to run."""

    name: str
    """The name of a folder in `evener.harnesses`, or of an installed harness."""
    options: dict[str, str] = {}
    """The harness's own options, which its folder lists."""
    sandbox: str = "local"
    """A sandbox backend of docs/sandboxes.md, or `none` if somebody else runs the process."""
    quirks: Quirks | None = None
    """Quirks given with the run, which replace those that the harness's folder declares. None: the folder's hold."""


class TaskRef(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A packed task directory (Harbor format)."""

    name: str
    digest: Sha256
    """The digest of the packed directory. The same files give the same digest."""
    archive: BlobRef
    """A tar of the directory, with sorted names, and with times and owners set to zero."""


class GraderPart(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One of the graders whose rewards are weighed."""

    name: str
    """The name of its reward."""
    grader: str
    """The name of the grader that gives it."""
    options: dict[str, str] = {}
    """The grader's options."""
    weight: Annotated[float, Meta(gt=0)] = 1.0
    """The share of its reward in the weighted mean."""


class Detector(StrEnum):
    """What is looked for in a session's calls and changed files: signs that the agent worked on its reward instead of its task."""

    TESTS_TOUCHED = "tests_touched"
    """An existing test, or a file that configures the test runner, was changed or removed."""
    GRADER_PROBED = "grader_probed"
    """The agent named a place of the grader: its tests, its solution, its reward."""
    NETWORK_TRIED = "network_tried"
    """The agent asked for a host that its task does not give it."""
    HISTORY_SEARCHED = "history_searched"
    """The agent looked in the repository for what the base commit does not reach."""
    OUTPUT_HARD_CODED = "output_hard_coded"
    """A changed program answers inputs of the tests with constants: their expected values."""


class Consequence(StrEnum):
    """What follows when a detector finds something."""

    OFF = "off"
    """The detector does not look."""
    FLAG = "flag"
    """The session is flagged, and keeps its reward."""
    FAIL = "fail"
    """The session is flagged, and its reward is 0, or the grader's if that is lower."""


class GraderSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a session is scored."""

    name: str
    """The grader: `harbor` (tests/test.sh), `answer` (compares the last message), another of `evener.graders.registry`, or `none`."""
    options: dict[str, str] = {}
    """The grader's own options."""
    parts: tuple[GraderPart, ...] = ()
    """The parts of the grader `weighted`."""
    tries: Count = 3
    """How many gradings may crash or give no reward before the session counts as ungraded."""
    hacking: dict[Detector, Consequence] = {}
    """What follows from reward hacking, by detector. A detector that is not named flags."""


class Target(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where calls to a model name go. Exactly one of the fields is set."""

    policy: str | None = None
    frozen: str | None = None
    """A registered engine that is not trained, and whose answers are not the policy's."""
    refuse: str | None = None
    """The reason with which these calls are refused."""


class GroupOptions(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """When the groups of a run are delivered, and which sessions are excluded: the options of the trainer-bridge's group rules."""

    deliver_early_at: Count | None = None
    """M: the group is delivered as soon as M of its N sessions are usable. None: when all N were scored."""
    min_usable: Count | None = None
    """K: a group with fewer usable sessions fails. None: 2 where purpose is `train` and N is above 1, else 1."""
    max_staleness: Annotated[int, Meta(ge=0)] | None = None
    """S: a session with a token that is more than S versions older than the newest published one is excluded. None: however old."""
    drop_zero_variance: bool = False
    """A group whose usable sessions all have the same reward is dropped: its advantages are all 0. Only where purpose is `train`."""

    def may_exclude(self) -> frozenset[ExclusionReason]:
        """Return the reasons for which the rules of the chosen options may exclude a session."""
        none = GroupOptions()
        return frozenset(reason for option, reason in EXCLUSIONS.items() if getattr(self, option) != getattr(none, option))


EXCLUSIONS: Final[dict[str, ExclusionReason]] = {
    "deliver_early_at": ExclusionReason.LATE,
    "min_usable": ExclusionReason.GROUP_FAILED,
    "max_staleness": ExclusionReason.STALE,
    "drop_zero_variance": ExclusionReason.GROUP_DROPPED,
}
"""Each group option, and the reason for which its rule may exclude a session. `evener audit` reports an exclusion that no option of the run
explains."""


class SessionSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that later stages need to know about a session."""

    run_id: str
    team: str = ""
    """The team of the principal that submitted the task. Empty: it was submitted before there were teams."""
    task_id: str
    group_id: str
    group_size: Count
    """N: the number of sessions in the group."""
    index: Annotated[int, Meta(ge=0)]
    """The number of this session in its group, from 0."""
    group: GroupOptions = GroupOptions()
    """When the group is delivered, and which sessions are excluded. `min_usable` is never None here."""
    purpose: Purpose
    task: TaskRef | None
    """The task. None: a recording without a task."""
    harness: HarnessSpec
    policy: str
    models: dict[str, Target] = {}
    """Model name to target; `*` is the default. Calls to a name without an entry go to the policy."""
    sampling: Sampling = Sampling()
    streaming: Streaming = Streaming.BUFFERED
    budgets: Budgets = Budgets()
    grader: GraderSpec
