"""The cases: the scripted engine's answers in each, and the interference with the session meanwhile."""

from collections.abc import Callable, Sequence
from enum import Enum
from random import Random
from typing import Final, Literal

from msgspec import Struct, structs
from proofs.conformance.setups import AGENT_TASK, HEARD, SetUp

from evener.engines.scripted import Rule, Script, ToolCall, Wait
from evener.engines.scripted.script import Step
from evener.proto.spec import Streaming

INSTRUCTION: Final = "Do what this conformance case wants."
ANSWER: Final = "All is written."
FILES: Final = {
    "first.txt": "1.0 é😀",
    "second.txt": "two\\n",
    "third.txt": 'a "third"',
    "fourth.txt": "4",
    "fifth.txt": "five",
    "sixth.txt": "6  6",
    "seventh.txt": "seven",
}
"""Path to content."""
SLOW_MS: Final = 20_000
SIX_MINUTES_MS: Final = 360_000
AS_ALWAYS: Final = Step()
WORDS: Final = (
    "apple bridge candle desert engine forest garden hammer island jacket kitchen ladder market needle orange pencil quarter river "
    "silver tunnel umbrella valley window yellow zebra autumn basket copper dinner eagle feather gentle harbor iron jungle kettle lemon "
    "mirror number ocean paper quiet rabbit summer thunder uncle velvet winter butter circle donkey empty flower ginger hollow"
)
SAYS: Final = "Nothing is written yet, says the summary."
SUMMARY: Final = (
    f"<analysis>Short.</analysis>\n<state_snapshot>\n<overall_goal>{SAYS}</overall_goal>\n</state_snapshot>\n<summary>{SAYS}</summary>"
)
ASKED: Final = (
    "CONTEXT CHECKPOINT COMPACTION",
    "REMINDER: Do NOT call any tools",
    "produce the <state_snapshot>",
    "generate a new <state_snapshot>",
    "the component that summarizes",
    "structured context checkpoint summary",
    "This compaction should PRIORITISE",
    "Now summarize the events using the rules above",
    "Later messages are stored separately",
)
"""The texts with which requests for a summary end."""
SUMMARISE: Final = rf"(?s)^(?!.*{SAYS}).*(?:{'|'.join(ASKED)})|</untrusted-text><\|im_end\|>\n<\|im_start\|>assistant\n$"
"""Found at the end of such a request, and of no other."""


class Where(Enum):
    """The kind of Evener in which a case runs."""

    ONE_PROCESS = "one process, the embedded bus"
    NO_QUEUE = "the same, and no call may wait for an engine"
    SIX_PROCESSES = "six processes, a real broker"


class Case(Struct, frozen=True, kw_only=True):
    """One column of the suite."""

    name: str
    short: str
    """Its name where there is little room."""
    about: str
    script: Callable[[SetUp], Script]
    where: Where = Where.ONE_PROCESS
    streaming: Streaming = Streaming.BUFFERED
    meddle: Literal["kill", "cancel", "drain"] | None = None
    """The interference while an answer waits at the gate of this name: `kill` the gateway, `cancel` the task, `drain` the engine a
    while."""
    told: str = ""
    """A text that the main conversation must have been told."""
    watched: bool = False
    """Whether its processes are watched: they may connect to loopback alone, and look up nothing."""
    answer_tokens: int = 1024
    limit_seconds: float = 300.0
    only_when_asked: bool = False
    """Whether it runs only with SLOW=1, because it takes minutes in which nothing is computed."""


def calls_of(setup: SetUp) -> list[ToolCall]:
    """Return the calls that write the files, in this set-up's words."""
    return [ToolCall(name=setup.probe.tool, arguments=setup.probe.filled(path, content)) for path, content in FILES.items()]


def files_of(case: Case, setup: SetUp) -> Sequence[str]:
    """Return the files that the script has written."""
    rules = case.script(setup).rules
    said = [(call.name, call.arguments) for rule in rules for step in (rule, *rule.steps) for call in step.tool_calls]
    return [path for path, call in zip(FILES, calls_of(setup), strict=True) if (call.name, call.arguments) in said]


def linear(setup: SetUp) -> Script:
    """Return six tool turns, two calls at once in one of them: reasoning, text, odd spellings; then the answer."""
    one, two, three, four, five, six, seven = calls_of(setup)
    return _turns(
        Step(think="The first file is to be written.", say="\n\n  I'll write it é\u2028😀.  \n", tool_calls=(one,)),
        Step(tool_calls=(structs.replace(two, spelling="compact"),)),
        Step(think="Two at once.", say="Two at once.", tool_calls=(three, structs.replace(four, spelling="reordered"))),
        Step(say=" \n\n", tool_calls=(structs.replace(five, spelling="escaped"),)),
        Step(think=" Blank around. \n", tool_calls=(six,)),
        Step(tool_calls=(structs.replace(seven, spelling="inline"),)),
        Step(think="That is all.", say=f"  {ANSWER}\n\n"),
    )


def three_turns(setup: SetUp, *, second: Step = AS_ALWAYS, third: Step = AS_ALWAYS) -> Script:
    """Return three tool turns and the answer. `second`, `third`: what is special about them, beside what they say."""
    one, two, three, *_ = calls_of(setup)
    return _turns(
        Step(think="The first.", tool_calls=(one,)),
        structs.replace(second, say="The second.", tool_calls=(two,)),
        structs.replace(third, say="The third.", tool_calls=(three,)),
        Step(say=ANSWER),
    )


def killed(setup: SetUp) -> Script:
    """Return the same, whose third answer waits at the gate `kill` after two tokens."""
    return three_turns(setup, third=Step(wait=(Wait(before=3, gate="kill"),)))


def cancelled(setup: SetUp) -> Script:
    """Return the same with the gate `cancel`: the other one stays open."""
    return three_turns(setup, third=Step(wait=(Wait(before=3, gate="cancel"),)))


def length(setup: SetUp) -> Script:
    """Return an answer that ends by length in its text; where the CLI goes on, a tool turn and the answer."""
    one, two, *_ = calls_of(setup)
    return _turns(Step(tool_calls=(one,)), Step(say="This is only the beg", finish="length"), Step(tool_calls=(two,)), Step(say=ANSWER))


def bad_json(setup: SetUp) -> Script:
    """Return a call whose arguments are no JSON beside a good one, and later one alone."""
    one, two, *_ = calls_of(setup)
    broken = ToolCall(name=setup.probe.tool, arguments='{"command": "echo hi')
    return _turns(Step(say="Now.", tool_calls=(one, broken)), Step(tool_calls=(two,)), Step(say="Once more.", tool_calls=(broken,)))


def drained(setup: SetUp) -> Script:
    """Return the same with the gate `drain` in its second answer."""
    return three_turns(setup, second=Step(wait=(Wait(before=3, gate="drain"),)))


def sub_agent(setup: SetUp) -> Script:
    """Return the start of a sub-agent, what has to follow, and the answer; the sub-agent writes a file and tells what it saw."""
    assert setup.agent is not None
    first, *_ = calls_of(setup)
    parent = (*(Step(tool_calls=(call,)) for call in setup.agent.calls), Step(say=ANSWER))
    child = (Step(tool_calls=(first,)), setup.agent.ends)
    rules = (Rule(match=INSTRUCTION, tail=0, steps=parent), Rule(match=AGENT_TASK, tail=0, steps=child))
    return Script(rules=rules, default=Step(say="So it is."))


def compaction(setup: SetUp) -> Script:
    """Return long answers with a file each until the history is replaced by a summary, and the rest; who wants a summary gets one."""
    assert setup.compaction is not None
    words, calls = setup.compaction.words, calls_of(setup)
    steps = [Step(say=_long(words, turn), tool_calls=(calls[turn],)) for turn in range(setup.compaction.turns)]
    after = (Step(tool_calls=(calls[setup.compaction.turns],)), Step(say=ANSWER))
    asked, worked = Rule(regex=SUMMARISE, say=SUMMARY), Rule(key=r"<\|im_start\|>", steps=(*steps, *after))
    return Script(rules=(asked, worked))


def _long(words: int, turn: int) -> str:
    """Return a text in which nothing is said twice: some of them take repetition for a loop."""
    chosen = Random(turn).choices(WORDS.split(), k=words)  # noqa: S311 - any words will do
    return " ".join(chosen)


def _turns(*steps: Step) -> Script:
    return Script(rules=(Rule(match=INSTRUCTION, tail=0, steps=steps),), default=Step(say="I do not know this turn."))


def slow(setup: SetUp) -> Script:
    """Return three turns, the second after 20 s of silence."""
    return three_turns(setup, second=Step(delay_ms=SLOW_MS))


def six_minutes(setup: SetUp) -> Script:
    """Return three turns, the second after 6 minutes of silence."""
    return three_turns(setup, second=Step(delay_ms=SIX_MINUTES_MS))


CASES: Final = {
    case.name: case
    for case in (
        Case(name="linear", short="lin", about="6 tool turns, 2 calls at once, reasoning; hold", script=linear),
        Case(name="live", short="live", about="the same, live", script=linear, streaming=Streaming.LIVE),
        Case(name="sub_agent", short="sub", about="a sub-agent works beside or before its parent", script=sub_agent, told=HEARD),
        Case(name="compaction", short="comp", about="its history is replaced by a summary", script=compaction, answer_tokens=65536),
        Case(name="refused", short="429", about="a 429 and a 503, both with Retry-After, before the stream", script=three_turns),
        Case(
            name="overloaded",
            short="503",
            about="the gateway has no free engine, and no room to wait: 503 with Retry-After",
            script=drained,
            where=Where.NO_QUEUE,
            meddle="drain",
        ),
        Case(name="gateway_lost", short="lost", about="the gateway's task ends while it samples", script=killed, meddle="kill"),
        Case(
            name="gateway_killed",
            short="kill",
            about="the gateway's process is killed while it samples, and started again; six processes on Kafka",
            script=killed,
            where=Where.SIX_PROCESSES,
            meddle="kill",
        ),
        Case(name="slow", short="20s", about="20 s of silence", script=slow),
        Case(name="six_minutes", short="6min", about="6 minutes of silence", script=six_minutes, limit_seconds=600.0, only_when_asked=True),
        Case(name="length", short="len", about="an answer ends by length", script=length),
        Case(name="bad_json", short="json", about="tool calls that are no JSON, beside a good one and alone", script=bad_json),
        Case(name="cancelled", short="canc", about="its task is cancelled while it samples", script=cancelled, meddle="cancel"),
        Case(name="quiet", short="net", about="nothing beyond loopback is connected to or looked up", script=three_turns, watched=True),
    )
}
