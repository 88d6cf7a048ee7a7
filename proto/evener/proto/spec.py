"""What a session is to do: the options of a run, as every stage needs them. Carried whole in SessionStarted.

All are frozen Structs without a tag: they are parts of events, not events.
"""

import re
from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta, Struct

from evener.proto.blobs import BlobRef, Sha256

Count = Annotated[int, Meta(ge=1)]


class Purpose(StrEnum):
    """What the groups of a task are for. Only `train` reaches trainers."""

    TRAIN = "train"
    EVAL = "eval"
    COLLECT = "collect"


class Streaming(StrEnum):
    """When a streamed answer leaves."""

    HOLD = "hold"
    """Whole, after the commit. The relay keeps the harness waiting with harmless protocol events."""
    LIVE = "live"
    """Text and reasoning as they are sampled, what lets a harness act after the commit."""


class Thinking(StrEnum):
    """What happens to the reasoning of earlier turns."""

    TEMPLATE = "template"
    """What the model's chat template does; where it strips, a new root starts."""
    ALL = "all"
    """Everything is kept."""


class Reasoning(StrEnum):
    """What a harness gets that sends a turn back without its reasoning."""

    AS_SENT = "as_sent"
    """What plain serving would give it: the reasoning is gone."""
    REINSTATE = "reinstate"
    """The tokens that were sampled."""


class Strategy(StrEnum):
    """How rows are cut from a session's forest."""

    TREE = "tree"
    """A row for each root-to-leaf path; a sampled token is trained in the first row that holds it."""
    PER_CALL = "per_call"
    """A row for each call, to compare."""


class PolicyOptions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Options of a policy's rendering, recorded in every row."""

    thinking: Thinking = Thinking.TEMPLATE
    reasoning: Reasoning = Reasoning.REINSTATE


class Sampling(Struct, frozen=True, kw_only=True):
    """Sampling parameters, whole: every field is sent to the engine, so that no engine default can creep in.

    The defaults sample from the model's own distribution, the one whose logprobs engines report.
    """

    temperature: Annotated[float, Meta(ge=0)] = 1.0
    """0: greedy."""
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """1: off."""
    top_k: Annotated[int, Meta(ge=0)] = 0
    """0: off."""
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """0: off."""
    max_tokens: Count | None = None
    """Tokens an answer may have at most. None: what the harness asks for, or the context that is left."""
    seed: int | None = None
    """None: the engine draws. A call uses a seed of its own derived from it, so that repeated prompts differ."""


class Budgets(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits of a session. None: no limit. Spending one ends the session with that reason; it is graded and trainable."""

    agent_seconds: Annotated[float, Meta(gt=0)] | None = None
    """The agent's clock: the harness's own time and sampling, not queues, owners or weight updates."""
    tokens: Count | None = None
    """Sampled tokens."""
    calls: Count | None = None
    """Model calls."""
    turns: Count | None = None
    """Calls that extend their parent, plus one."""
    repeats: Count | None = None
    """The same tool call with the same result so many times in a row is looping."""
    attempts: Count = 3
    """Starts of a session, infrastructure faults included."""
    deadline_seconds: Annotated[float, Meta(gt=0)] | None = None
    """From the first dispatch to being given up."""


class Tolerance(StrEnum):
    """A difference between a sampled answer and its copy in the history that does not make it another answer."""

    NUMBERS_LOOSE = "numbers_loose"
    """1.0 equals 1; long integers may lose digits."""
    TEXT_TRIMMED = "text_trimmed"
    BLANK_TEXT_ABSENT = "blank_text_absent"
    REASONING_ABSENT = "reasoning_absent"
    CALL_ID_LETTERS = "call_id_letters"
    """Tool-call ids compare by letters and digits only."""
    CALL_IDS_ABSENT = "call_ids_absent"
    """Tool calls come back without their ids (as ""): they are told by name and arguments."""


NOISY_ROLES: Final = ("system", "tool", "user")


def _check_pattern(pattern: str | None, of: str) -> None:
    """Raise ValueError for what is no regular expression."""
    if pattern is None:
        return
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as cause:
        msg = f"{of} is no regular expression: {cause}: {pattern[:100]!r}"
        raise ValueError(msg) from cause


class Noise(Struct, frozen=True, kw_only=True):
    """Text of a harness that varies without meaning. It is cut from what is compared and rendered, and the cut is recorded."""

    where: str
    """`system`, `tool` or `user`: the role of the messages it stands in."""
    pattern: str
    """A regular expression; what it matches is cut."""

    def __post_init__(self) -> None:
        """Refuse a pattern that is none, and a role that has no noise."""
        if self.where not in NOISY_ROLES:
            msg = f"where is {self.where!r}, not one of {', '.join(NOISY_ROLES)}"
            raise ValueError(msg)
        _check_pattern(self.pattern, "pattern")


class SideCall(Struct, frozen=True, kw_only=True):
    """How to recognise a call that is not the agent's work. All given conditions must hold."""

    name: str
    """What it is: `title`, `memory`, `router`, ..."""
    system: str | None = None
    """A regular expression found in the first system message."""
    last: str | None = None
    """A regular expression found in the last message."""
    tools: bool | None = None
    """True: has tools. False: has none. None: either."""

    def __post_init__(self) -> None:
        """Refuse a pattern that is none, and a signature that every call would meet."""
        if self.system is None and self.last is None and self.tools is None:
            msg = f"side call {self.name!r} has no condition: give system, last or tools"
            raise ValueError(msg)
        _check_pattern(self.system, "system")
        _check_pattern(self.last, "last")


class Quirks(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is special about a harness, as data. Declared in its folder or given with a run, carried in SessionStarted."""

    tolerances: tuple[Tolerance, ...] = ()
    noise: tuple[Noise, ...] = ()
    side_calls: tuple[SideCall, ...] = ()
    retry_header: str | None = None
    """The header (lower case) by which its client marks a transport retry, with a count above 0."""
    compacted: str | None = None
    """A regular expression found in the user message that takes the place of a compacted history."""
    sub_agent_header: str | None = None
    """The header (lower case) that the requests of its sub-agents carry. None: they are told by their prompts alone."""

    def __post_init__(self) -> None:
        """Refuse a pattern that is none."""
        _check_pattern(self.compacted, "compacted")


class HarnessSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The agent program to run."""

    name: str
    """A folder of `evener.harnesses`."""
    options: dict[str, str] = {}
    """The harness's own options; its folder lists them."""
    sandbox: str = "local"
    """The sandbox backend: `local` (a plain process), `docker`, ... or `none`: the process is run by somebody else."""
    quirks: Quirks | None = None
    """Given with the run, instead of those that its folder declares. None: the folder's."""


class TaskRef(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task directory (Harbor format), packed."""

    name: str
    digest: Sha256
    """Of the packed directory: the same files give the same digest."""
    archive: BlobRef
    """A tar of the directory; sorted names, times and owners zeroed."""


class GraderSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a session is scored."""

    name: str
    """`harbor` (tests/test.sh), `answer` (compare the last message), `fixed` (a reward given by hand) or `none`."""
    options: dict[str, str] = {}
    """The grader's own options."""
    tries: Count = 3
    """Gradings that may crash or give no reward before the session counts as ungraded."""


class Target(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where calls to a model name go. Exactly one of the fields says so."""

    policy: str | None = None
    frozen: str | None = None
    """A registered engine that is not trained; its answers are foreign."""
    refuse: str | None = None
    """Refused, with this reason."""


class SessionSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that a later stage needs to know of a session's purpose."""

    run_id: str
    task_id: str
    group_id: str
    group_size: Count
    """N: the sessions of the group."""
    index: Annotated[int, Meta(ge=0)]
    """Which of them this is, from 0."""
    early_at: Count | None = None
    """M: the group is delivered as soon as M sessions are usable. None: when all N were seen."""
    at_least: Count = 1
    """A group with fewer usable sessions fails."""
    purpose: Purpose
    task: TaskRef | None
    """None: a recording without a task."""
    harness: HarnessSpec
    policy: str
    models: dict[str, Target] = {}
    """Model name to target; `*` is the default. A name without an entry goes to the policy."""
    sampling: Sampling = Sampling()
    streaming: Streaming = Streaming.HOLD
    budgets: Budgets = Budgets()
    grader: GraderSpec
    max_lag: Annotated[int, Meta(ge=0)] | None = None
    """Oldest policy version, counted back from the newest, that may be merged. None: any."""
