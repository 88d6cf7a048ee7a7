"""Which harnesses, in which dialects and settings, and what each is expected to do in each case: data, with the reasons.

What is not said here is the same for all: see `EXPECTED`.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct, structs
from proofs.conformance.facts import AS_IT_HAPPENS, BY_SIGNAL, Facts

from evener.engines.scripted import ToolCall
from evener.engines.scripted.script import Step
from evener.harnesses.port import Probe
from evener.harnesses.registry import harness
from evener.proto.reasons import ExitCause, TerminationReason

AGENT_TASK: Final = "Look around in the yard."
HEARD: Final = "The yard is empty but for a red ball."
"""The sub-agent's report."""


class SubAgent(Struct, frozen=True, kw_only=True):
    """How a sub-agent works."""

    calls: tuple[ToolCall, ...]
    """The tool calls of its parent: one starts it, and others give it time."""
    ends: Step = Step(say=HEARD)
    """Its last answer."""


class Compaction(Struct, frozen=True, kw_only=True):
    """How a summary is provoked."""

    options: dict[str, str]
    words: int
    """The number of words in each long answer."""
    turns: int
    """The number of long answers, at most six: each comes with a file."""


class SetUp(Struct, frozen=True, kw_only=True):
    """A harness in one dialect and one setting."""

    name: str
    harness: str
    dialect: str
    options: dict[str, str] = {}
    append_only: bool = True
    """Its history is only appended to in a linear session: at most 1.2 rows."""
    agent: SubAgent | None = None
    compaction: Compaction | None = None
    lacks: dict[str, str] = {}
    """Cases that it cannot have, and why: for the table. `sub_agent` and `compaction` stand here or above."""
    expected: dict[str, Facts] = {}
    """What a case must show, by case, if that differs from `EXPECTED`."""
    notes: dict[str, str] = {}
    """Why a case shows what it does, by case, for the table."""

    def __post_init__(self) -> None:
        """Hold what is said of the two cases that some lack against each other."""
        assert (self.agent is None) == ("sub_agent" in self.lacks), self.name
        assert (self.compaction is None) == ("compaction" in self.lacks), self.name

    def has(self, case: str) -> bool:
        """Return whether a case is about it."""
        return case not in self.lacks

    def options_in(self, case: str) -> dict[str, str]:
        """Return its options in a case."""
        return {**self.options, **(self.compaction.options if self.compaction is not None and case == "compaction" else {})}

    @property
    def probe(self) -> Probe:
        """How its tool is called."""
        found = harness(self.harness).probe
        assert found is not None
        return found

    def wanted(self, case: str) -> Facts:
        """Return what a case must show."""
        return self.expected.get(case) or EXPECTED[case]


WITH_AGENT: Final = Facts(tree="first 2, sub_agent 2", rows=2)
KILLED: Final = Facts(tree="first 4", unanswered=AS_IT_HAPPENS, resampled=AS_IT_HAPPENS, aborted=1)
EXPECTED: Final[Mapping[str, Facts]] = {
    "linear": Facts(tree="first 7"),
    "live": Facts(tree="first 7"),
    "sub_agent": WITH_AGENT,
    "refused": Facts(tree="first 4", refused=(429, 503)),
    "overloaded": Facts(tree="first 4", refused=(503,)),
    "gateway_lost": KILLED,
    "gateway_killed": KILLED,
    "slow": Facts(tree="first 4"),
    "six_minutes": Facts(tree="first 4"),
    "length": Facts(tree="first 2", written=False),
    "bad_json": Facts(tree="first 3"),
    "cancelled": Facts(
        tree="first 3",
        rows=0,
        cause=ExitCause.CANCELLED,
        exit_code=BY_SIGNAL,
        end=TerminationReason.CANCELLED,
        delivered=0.0,
        fed=0.0,
        aborted=1,
        written=False,
    ),
    "quiet": Facts(tree="first 4"),
}
LOOK: Final = {"description": "look", "prompt": AGENT_TASK, "subagent_type": "general-purpose"}
PAUSE: Final = ToolCall(name="exec_command", arguments={"cmd": "sleep 5", "yield_time_ms": 10_000})
"""Codex ends its sub-agents with itself."""
COMPLETE: Final = ToolCall(name="complete_task", arguments={"result": {"response": HEARD}})
"""How a sub-agent of Gemini's ends."""
ASKS_FOR_THE_REST: Final = Facts(tree="first 4")

CODEX: Final = SetUp(
    name="codex",
    harness="codex",
    dialect="responses",
    agent=SubAgent(calls=(ToolCall(name="multi_agent_v1__spawn_agent", arguments={"message": AGENT_TASK}), PAUSE)),
    compaction=Compaction(options={"context_tokens": "60000", "compact_at_tokens": "20000"}, words=6000, turns=3),
    expected={
        "sub_agent": Facts(tree="first 3, sub_agent 2", rows=2),
        "compaction": Facts(tree="first 2, tools_changed 1, compaction 3", rows=3),
        "length": Facts(tree="first 2", exit_code=1, end=TerminationReason.HARNESS_FAILED, written=False),
    },
    notes={
        "compaction": "the summary is asked for without tools: a row of its own",
        "length": "an incomplete answer ends it with exit code 1",
    },
)
CLAUDE: Final = SetUp(
    name="claude_code lean",
    harness="claude_code",
    dialect="anthropic",
    agent=SubAgent(calls=(ToolCall(name="Agent", arguments=LOOK),)),
    compaction=Compaction(options={"context_tokens": "100000"}, words=24000, turns=2),
    expected={"compaction": Facts(tree="first 1(1 1), compaction 2", rows=3), "length": ASKS_FOR_THE_REST},
    notes={
        "compaction": "the newest turn stays as it is: the summary is asked for before it",
        "length": "it asks for the rest, and goes on",
    },
)
QWEN: Final = SetUp(
    name="qwen_code",
    harness="qwen_code",
    dialect="chat",
    options={"dialect": "chat"},
    agent=SubAgent(calls=(ToolCall(name="agent", arguments=LOOK),)),
    compaction=Compaction(options={"context_tokens": "60000"}, words=8000, turns=3),
    expected={
        "sub_agent": Facts(tree="first 3, sub_agent 2", rows=2),
        "compaction": Facts(tree="first 3, compaction 1, compaction 2", rows=3),
    },
)
GEMINI: Final = SetUp(
    name="gemini_cli",
    harness="gemini_cli",
    dialect="google",
    agent=SubAgent(
        calls=(ToolCall(name="invoke_agent", arguments={"agent_name": "generalist", "prompt": AGENT_TASK}),),
        ends=Step(tool_calls=(COMPLETE,)),
    ),
    expected={"cancelled": structs.replace(EXPECTED["cancelled"], exit_code=0)},
    notes={"cancelled": "asked to end, it ends with exit code 0"},
    lacks={"compaction": "all from the last prompt on stays, and in a run of one prompt nothing is before it"},
)
PI: Final = SetUp(
    name="pi chat",
    harness="pi",
    dialect="chat",
    options={"dialect": "chat", "context_tokens": "131072"},
    compaction=Compaction(options={"context_tokens": "100000"}, words=24000, turns=4),
    lacks={"sub_agent": "it has none"},
    expected={"compaction": Facts(tree="first 4, compaction 1, compaction 2", rows=3)},
)
OPENCLAW: Final = SetUp(
    name="openclaw responses",
    harness="openclaw",
    dialect="responses",
    options={"dialect": "responses"},
    lacks={
        "sub_agent": "`sessions_spawn` answers `published reply runtime missing`: only its gateway, a service that stays, has one",
    },
    compaction=Compaction(options={"context_tokens": "65536", "answer_tokens": "16384"}, words=12000, turns=3),
    expected={
        "compaction": Facts(tree="first 3, compaction 1, compaction 1, compaction 1, compaction 1, compaction 2", rows=6),
        "refused": Facts(tree="first 1, rewritten 1, rewritten 2", rows=3, refused=(429, 503)),
        "overloaded": Facts(tree="first 2, rewritten 2", rows=2, refused=(503,)),
    },
    notes=dict.fromkeys(("refused", "overloaded"), "it does not send the same request again, because it rewrites its history"),
)
HERMES: Final = SetUp(
    name="hermes",
    harness="hermes",
    dialect="chat",
    agent=SubAgent(calls=(ToolCall(name="delegate_task", arguments={"goal": AGENT_TASK}),)),
    compaction=Compaction(options={"context_tokens": "65536"}, words=12500, turns=4),
    expected={
        "compaction": Facts(tree="first 1(3 2), compaction 1", rows=3),
        "length": ASKS_FOR_THE_REST,
        "bad_json": Facts(tree="first 1, rewritten 2", rows=2),
    },
    notes={"length": "it asks for the rest, and goes on", "bad_json": "it cuts what is no JSON out of the answer's text"},
)
OPENHANDS: Final = SetUp(
    name="openhands",
    harness="openhands",
    dialect="chat",
    lacks={"sub_agent": "its driver gives it a terminal and an editor alone"},
    compaction=Compaction(options={"context_tokens": "20000"}, words=3500, turns=4),
    expected={"compaction": Facts(tree="first 1(3 2), compaction 1", rows=3)},
)
SCRIPT: Final = SetUp(
    name="script",
    harness="script",
    dialect="chat",
    lacks={"sub_agent": "it has none", "compaction": "it has none"},
)


def _each_a_row(facts: Facts, *, first: int | None = None, compacted: int = 0) -> Facts:
    """Return what becomes of a session in which no request begins with the one before.

    `first`: answers before a summary; None: as many as a linear session has. `compacted`: answers from then on.
    """
    calls = int(facts.tree.removeprefix("first ")) if first is None else first
    roots = ["first 1", *["rewritten 1"] * (calls - 1), *["compaction 1"] * compacted]
    return structs.replace(facts, tree=", ".join(roots), rows=len(roots) if facts.rows else 0)


def _of_openclaw(dialect: str, *, first: int, compacted: int) -> SetUp:
    """Return a set-up of OpenClaw's in a dialect where its note moves."""
    linear = {case: _each_a_row(facts) for case, facts in EXPECTED.items() if case not in OPENCLAW.lacks}
    return structs.replace(
        OPENCLAW,
        name=f"openclaw {dialect}",
        dialect=dialect,
        options={"dialect": dialect},
        append_only=False,
        expected={**linear, "compaction": _each_a_row(EXPECTED["linear"], first=first, compacted=compacted)},
        notes={"linear": "a note of its own moves with every request: each call is a row, root `rewritten`"},
    )


SETUPS: Final = {
    setup.name: setup
    for setup in (
        CODEX,
        CLAUDE,
        structs.replace(
            CLAUDE,
            name="claude_code plain",
            options={"settings": "plain"},
            compaction=Compaction(options={"context_tokens": "100000"}, words=24000, turns=3),
            expected={
                "sub_agent": Facts(tree="first 3, sub_agent 2", rows=2),
                "compaction": Facts(tree="first 2(1 1), compaction 2", rows=3),
                "length": ASKS_FOR_THE_REST,
            },
        ),
        QWEN,
        structs.replace(QWEN, name="qwen_code anthropic", dialect="anthropic", options={"dialect": "anthropic"}),
        GEMINI,
        PI,
        *(
            structs.replace(PI, name=f"pi {dialect}", dialect=dialect, options={**PI.options, "dialect": dialect})
            for dialect in ("responses", "anthropic", "google")
        ),
        OPENCLAW,
        _of_openclaw("chat", first=2, compacted=5),
        _of_openclaw("anthropic", first=3, compacted=6),
        HERMES,
        OPENHANDS,
        SCRIPT,
    )
}
