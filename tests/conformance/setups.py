"""Which harnesses, in which dialects and settings, and what each is expected to do in each case: data, with the reasons.

What is not said here is the same for all: see `EXPECTED`.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct, structs
from tests.conformance.facts import Facts

from evener.engines.scripted import Rule, ToolCall
from evener.engines.scripted.script import Step
from evener.harnesses.port import Probe
from evener.harnesses.registry import harness
from evener.proto.ends import End


class Compaction(Struct, frozen=True, kw_only=True):
    """How a summary is provoked."""

    options: dict[str, str]
    numbers: int
    """Of each long answer; 6 tokens each."""
    turns: int
    """Long answers, at most six: each comes with a file."""


class SetUp(Struct, frozen=True, kw_only=True):
    """A harness in one dialect and one setting."""

    name: str
    harness: str
    dialect: str
    options: dict[str, str] = {}
    append_only: bool = True
    """Its history is only appended to in a linear session: at most 1.2 rows."""
    agent: tuple[ToolCall, ...] | None = None
    """How it is told to start a sub-agent, and what gives that one time. None: it has none."""
    agent_says: tuple[Rule, ...] = ()
    """What its sub-agent is answered, where `Seen.` does not end it."""
    compaction: Compaction | None = None
    """None: it does not in a run of one prompt, or is not known to. Gemini CLI keeps all from the last prompt on, and there is
    nothing before."""
    expected: dict[str, Facts] = {}
    """By case, where it differs from `EXPECTED`."""
    notes: dict[str, str] = {}
    """By case: why, for the table."""

    on_kafka: bool = False
    """Its gateway is killed as a process, too."""

    def has(self, case: str) -> bool:
        """Return whether a case is about it."""
        match case:
            case "sub_agent":
                return self.agent is not None
            case "compaction":
                return self.compaction is not None
            case "gateway_killed":
                return self.on_kafka
            case _:
                return True

    @property
    def probe(self) -> Probe:
        """How its tool is called."""
        found = harness(self.harness).probe
        assert found is not None
        return found

    def wanted(self, case: str) -> Facts:
        """Return what a case must show."""
        return self.expected.get(case) or EXPECTED[case]


WITH_AGENT: Final = {"first": 1, "sub_agent": 1}
EXPECTED: Final[Mapping[str, Facts]] = {
    "linear": Facts(calls=7),
    "live": Facts(calls=7),
    "sub_agent": Facts(calls=3, rows=2, roots=WITH_AGENT),
    "refused": Facts(calls=4, refused=(429, 503)),
    "gateway_lost": Facts(calls=4, unanswered=None, resampled=None, aborted=1),
    "gateway_killed": Facts(calls=4, unanswered=None, resampled=None, aborted=1),
    "slow": Facts(calls=4),
    "six_minutes": Facts(calls=4),
    "length": Facts(calls=2, written=False),
    "bad_json": Facts(calls=3),
    "cancelled": Facts(calls=3, aborted=1, exit_code=None, end=End.CANCELLED, rows=0, delivered=0.0, fed=0.0, written=False),
}
AGENT: Final = {"description": "look", "prompt": "Look around.", "subagent_type": "general-purpose"}
PAUSE: Final = ToolCall(name="exec_command", arguments={"cmd": "sleep 5", "yield_time_ms": 10_000})
"""Codex ends its sub-agents with itself."""
COMPLETE: Final = ToolCall(name="complete_task", arguments={"result": {"response": "Seen."}})
"""How a sub-agent of Gemini's ends."""

CODEX: Final = SetUp(
    name="codex",
    harness="codex",
    dialect="responses",
    on_kafka=True,
    agent=(ToolCall(name="multi_agent_v1__spawn_agent", arguments={"message": "Look around."}), PAUSE),
    compaction=Compaction(options={"context_tokens": "60000", "compact_at_tokens": "20000"}, numbers=1000, turns=3),
    expected={
        "sub_agent": Facts(calls=4, rows=2, roots=WITH_AGENT),
        "compaction": Facts(calls=6, rows=3, roots={"first": 1, "tools_changed": 1, "compaction": 1}),
        "length": Facts(calls=2, exit_code=1, end=End.HARNESS_FAILED, written=False),
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
    agent=(ToolCall(name="Agent", arguments=AGENT),),
    compaction=Compaction(options={"context_tokens": "100000"}, numbers=4000, turns=2),
    expected={
        "compaction": Facts(calls=5, rows=3, roots={"first": 1, "compaction": 1}),
        "length": Facts(calls=4),
    },
    notes={"length": "it asks for the rest, and goes on"},
)
QWEN: Final = SetUp(
    name="qwen_code",
    harness="qwen_code",
    dialect="chat",
    options={"dialect": "chat"},
    agent=(ToolCall(name="agent", arguments=AGENT),),
    compaction=Compaction(options={"context_tokens": "60000"}, numbers=1300, turns=3),
    expected={
        "sub_agent": Facts(calls=4, rows=2, roots=WITH_AGENT),
        "compaction": Facts(calls=6, rows=3, roots={"first": 1, "compaction": 2}),
    },
)
GEMINI: Final = SetUp(
    name="gemini_cli",
    harness="gemini_cli",
    dialect="google",
    agent=(ToolCall(name="invoke_agent", arguments={"agent_name": "generalist", "prompt": "Look around."}),),
    agent_says=(Rule(match="complete_task", tail=0, steps=(Step(tool_calls=(COMPLETE,)),)),),
)
PI: Final = SetUp(
    name="pi chat",
    harness="pi",
    dialect="chat",
    on_kafka=True,
    options={"dialect": "chat", "context_tokens": "131072"},
    compaction=Compaction(options={"context_tokens": "100000"}, numbers=4000, turns=4),
    expected={"compaction": Facts(calls=7, rows=3, roots={"first": 1, "compaction": 2})},
)
OPENCLAW: Final = SetUp(
    name="openclaw responses",
    harness="openclaw",
    dialect="responses",
    options={"dialect": "responses"},
    expected={"refused": Facts(calls=4, rows=3, roots={"first": 1, "rewritten": 2}, refused=(429, 503))},
    notes={"refused": "it does not send the request again: it words its history anew"},
)


def _each_a_row(facts: Facts) -> Facts:
    """Return what becomes of a session in which no request begins with the one before."""
    roots = {"first": 1, "rewritten": facts.calls - 1}
    return structs.replace(facts, rows=facts.calls if facts.rows else 0, roots={name: count for name, count in roots.items() if count > 0})


SETUPS: Final = {
    setup.name: setup
    for setup in (
        CODEX,
        CLAUDE,
        structs.replace(
            CLAUDE,
            name="claude_code plain",
            options={"settings": "plain"},
            compaction=Compaction(options={"context_tokens": "100000"}, numbers=4000, turns=3),
            expected={
                "sub_agent": Facts(calls=4, rows=2, roots=WITH_AGENT),
                "compaction": Facts(calls=6, rows=3, roots={"first": 1, "compaction": 1}),
                "length": Facts(calls=4),
            },
        ),
        QWEN,
        structs.replace(QWEN, name="qwen_code anthropic", dialect="anthropic", options={"dialect": "anthropic"}),
        GEMINI,
        PI,
        *(
            structs.replace(PI, name=f"pi {dialect}", dialect=dialect, options={**PI.options, "dialect": dialect}, on_kafka=False)
            for dialect in ("responses", "anthropic", "google")
        ),
        OPENCLAW,
        *(
            structs.replace(
                OPENCLAW,
                name=f"openclaw {dialect}",
                dialect=dialect,
                options={"dialect": dialect},
                append_only=False,
                expected={case: _each_a_row(EXPECTED[case]) for case in EXPECTED},
                notes={"linear": "a note of its own moves with every request: each call is a row, root `rewritten`"},
            )
            for dialect in ("chat", "anthropic")
        ),
        SetUp(
            name="hermes",
            harness="hermes",
            dialect="chat",
            expected={
                "length": Facts(calls=4),
                "bad_json": Facts(calls=3, rows=2, roots={"first": 1, "rewritten": 1}),
            },
            notes={"length": "it asks for the rest, and goes on", "bad_json": "it cuts what is no JSON out of the answer's text"},
        ),
        SetUp(name="openhands", harness="openhands", dialect="chat"),
        SetUp(
            name="script",
            harness="script",
            dialect="chat",
            expected={"refused": Facts(calls=1, exit_code=1, end=End.HARNESS_FAILED, refused=(429,), written=False)},
            notes={"refused": "it tries again after 5xx only"},
        ),
    )
}
