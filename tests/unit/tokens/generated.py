"""Generated sessions: whatever a harness may do to its history, as a list of small steps that hypothesis can shrink."""

from collections.abc import Sequence
from typing import Final

from hypothesis import strategies as st
from tests.unit.tokens.toy import World

from evener.proto.codec import decode
from evener.proto.ends import CallFailure
from evener.proto.sessions import FinishReason
from evener.proto.spec import Quirks, SideCall, Tolerance
from evener.proto.trajectories import TrajectoryBuilt
from evener.templates.port import Message
from evener.tokens.history import History
from evener.tokens.session import Session

TEXTS: Final = ("the end", "  there in the hen \n", "another one", "", 'see<call>{"n": 1.0}', 'the<call>{"cmd": "there"}', "<call>{broken")
QUIRKS: Final = Quirks(tolerances=tuple(Tolerance), side_calls=(SideCall(name="title", last="^Title"),))
STEPS: Final = (
    *("ask", "ask", "ask", "user", "tool", "tool"),
    *("vote", "choices", "length", "abort", "fail", "undeliver", "retry"),
    *("rewrite", "drop", "alter", "compact", "sub_agent", "side_call", "retool", "together", "attempt", "take_over"),
)

Step = tuple[str, int, int]
steps: Final = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 3), st.integers(0, 6)), min_size=1, max_size=24)


class Harness:
    """Plays steps on a World. It keeps several conversations, as sub-agents do."""

    def __init__(self, seed: int = 0) -> None:
        self.world = World(seed, QUIRKS)
        self.talks: list[list[Message]] = []
        self.tools: list[Message] = []
        self.last: dict[int, str] = {}
        self.begin()

    def begin(self) -> None:
        """Every attempt starts from the same prompt."""
        self.talks = [[{"role": "system", "content": "be good there"}, {"role": "user", "content": "do the thing"}]]
        self.tools = []

    def play(self, plan: Sequence[Step]) -> TrajectoryBuilt:
        """Play all steps and seal."""
        for name, which, number in plan:
            getattr(self, name)(self.talks[which % len(self.talks)], number)
        if not self.world.session.forest.calls:
            self.ask(self.talks[0], 0)
        return self.world.seal()

    def ask(self, talk: list[Message], number: int, *, finish: FinishReason = FinishReason.STOP) -> None:
        placed, opened = self.world.open(talk, self.tools)
        text = TEXTS[number % len(TEXTS)] or ("" if finish is FinishReason.STOP else "x")  # an engine samples at least one token
        answer = self.world.close(placed, opened, [text], finish)[0]
        context = self.world.session.forest.context(self.world.session.forest.calls[opened.call_id])
        assert context.tolist() == placed.context.tolist() == self.world.ledger[-1]["fed_ids"]
        self.last[id(talk)] = opened.call_id
        talk.append(answer)

    def user(self, talk: list[Message], number: int) -> None:
        talk.append({"role": "user", "content": f"then {TEXTS[number % len(TEXTS)]}"})

    def tool(self, talk: list[Message], number: int) -> None:
        calls = talk[-1].get("tool_calls") or ()
        talk.extend({"role": "tool", "tool_call_id": call["id"], "content": f"<result {number}>"} for call in calls)

    def vote(self, talk: list[Message], number: int) -> None:
        self.world.close(*self.world.open(talk, self.tools), [TEXTS[number % len(TEXTS)]])
        self.ask(talk, number)

    def choices(self, talk: list[Message], number: int) -> None:
        placed, opened = self.world.open(talk, self.tools)
        answers = self.world.close(placed, opened, [TEXTS[(number + at) % len(TEXTS)] for at in range(3)])
        talk.append(answers[number % 3])

    def length(self, talk: list[Message], number: int) -> None:
        self.ask(talk, number, finish=FinishReason.LENGTH)

    def abort(self, talk: list[Message], number: int) -> None:
        self.ask(talk, number, finish=FinishReason.ABORTED)
        if number % 2:
            talk.pop()

    def fail(self, talk: list[Message], number: int) -> None:
        self.world.fail(self.world.open(talk, self.tools)[1], (CallFailure.OWNER_LOST, CallFailure.CANCELLED)[number % 2])

    def undeliver(self, talk: list[Message], number: int) -> None:
        del number
        if (call_id := self.last.get(id(talk))) is not None and call_id in self.world.session.forest.calls:
            self.world.undeliver(call_id)

    def retry(self, talk: list[Message], number: int) -> None:
        placed, opened = self.world.open(talk, self.tools)
        self.world.close(placed, opened, [TEXTS[number % len(TEXTS)]])
        talk.append(self.world.close(*self.world.open(talk, self.tools, retry_of=opened.call_id), [TEXTS[(number + 1) % len(TEXTS)]])[0])

    def rewrite(self, talk: list[Message], number: int) -> None:
        at = number % len(talk)
        talk[at] = talk[at] | {"content": f"rewritten {number}"}

    def drop(self, talk: list[Message], number: int) -> None:
        del talk[1 + number % len(talk) :]

    def alter(self, talk: list[Message], number: int) -> None:
        at = number % len(talk)
        calls = [call | {"arguments": {"n": 1}} if call["arguments"] == {"n": 1.0} else call for call in talk[at].get("tool_calls", ())]
        talk[at] = talk[at] | {"content": str(talk[at]["content"]).strip()} | ({"tool_calls": calls} if calls else {})

    def compact(self, talk: list[Message], number: int) -> None:
        talk[2:] = [{"role": "user", "content": f"summary {number}"}]

    def sub_agent(self, talk: list[Message], number: int) -> None:
        del talk
        self.talks.append([{"role": "system", "content": f"helper {number % 2}"}, {"role": "user", "content": "the part"}])

    def side_call(self, talk: list[Message], number: int) -> None:
        self.world.ask([*talk, {"role": "user", "content": "Title?"}], TEXTS[number % len(TEXTS)], tools=self.tools)

    def retool(self, talk: list[Message], number: int) -> None:
        del talk
        self.tools = [{"name": f"tool{at}", "parameters": {}} for at in range(number % 3)]

    def together(self, talk: list[Message], number: int) -> None:
        first, second = self.world.open(talk, self.tools), self.world.open([*talk, {"role": "user", "content": "b"}], self.tools)
        self.world.close(*second, [TEXTS[number % len(TEXTS)]])
        talk.append(self.world.close(*first, [TEXTS[(number + 1) % len(TEXTS)]])[0])

    def attempt(self, talk: list[Message], number: int) -> None:
        del talk
        if number == 0 and self.world.session.attempt < 3:
            self.world.start(self.world.session.attempt + 1)
            self.begin()

    def take_over(self, talk: list[Message], number: int) -> None:
        """Another gateway reads the log, some of it twice, and goes on."""
        del talk
        session = Session("t.0")
        for offset, data in enumerate(self.world.log, start=1):
            for _ in range(1 + number % 2):
                session.apply(decode(data), offset=offset, record_at=100.0)
        self.world.session = session
        self.world.history = History(session.forest, QUIRKS, session.attempt)
