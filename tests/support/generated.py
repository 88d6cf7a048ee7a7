"""Generated sessions: whatever a harness may do to its history, as a list of small steps that hypothesis can shrink."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np
from hypothesis import strategies as st
from tests.support.world import World, folded

from evener.proto.arrays import int32s, uint8s
from evener.proto.ids import answer_key
from evener.proto.reasons import END_POLICY, CallFailure, ExclusionReason
from evener.proto.sessions import CallOpened, FinishReason
from evener.proto.spec import Noise, Quirks, SideCall, Tolerance
from evener.proto.trajectories import TrajectoryBuilt
from evener.tokens.digests import Message
from evener.tokens.history import History
from evener.tokens.place import Placed

TEXTS: Final = (
    *("the end", "  there in the hen \n", "another one", "", "<call>{broken"),
    *('see<call>{"n": 1.0}', 'the<call>{"cmd": "there"}', "then in\n</think>the end", 'there</think><call>{"n": 1.0}'),
)
NOISE: Final = "[at 1{number}:00] "
QUIRKS: Final = Quirks(
    tolerances=tuple(Tolerance),
    side_calls=(SideCall(name="title", last="^Title"),),
    noise=(Noise(where="system", pattern=r"\[at \d+:00\] "), Noise(where="tool", pattern=r"\[at \d+:00\] ")),
)
STEPS: Final = (
    *("ask", "ask", "ask", "user", "tool", "tool"),
    *("vote", "choices", "length", "abort", "fail", "undeliver", "retry", "retry_answered", "forget", "keyed", "noise", "reported"),
    *("live", "live", "end_live", "vote_at_once"),
    *("rewrite", "drop", "alter", "compact", "sub_agent", "side_call", "retool", "together", "attempt", "take_over"),
)

Step = tuple[str, int, int]
steps: Final = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 3), st.integers(0, 6)), min_size=1, max_size=24)


class Harness:
    """Plays steps on a World. It keeps several conversations, as sub-agents do."""

    def __init__(self, seed: int = 0) -> None:
        self.world = World(seed, QUIRKS)
        self.world.changed = False
        self.talks: list[list[Message]] = []
        self.pending: list[tuple[list[Message], Placed, CallOpened]] = []
        """Calls whose opening is in the log, with their histories."""
        self.tools: list[Message] = []
        self.last: dict[int, str] = {}
        self.lost: set[str] = set()
        """Calls whose own connection was lost, as the harness itself knows."""
        self.got_again: set[str] = set()
        """Calls whose answer a retry received."""
        self.superseded: set[str] = set()
        self.aborted: set[str] = set()
        self.beside: set[str] = set()
        """Side calls."""
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
        self.break_off(CallFailure.CANCELLED)
        return self.world.seal()

    def break_off(self, why: CallFailure) -> None:
        """End the calls that are open, as their owner or the next one does."""
        for _, _, opened in self.pending:
            self.world.fail(opened, why)
        self.pending.clear()

    def excluded(self, trajectory: TrajectoryBuilt) -> dict[ExclusionReason, int]:
        """Return how many tokens the engine sampled for nothing, by the reason that the harness knows."""
        attempts = {call.call_id: call.attempt for call in trajectory.calls}
        known: Counter[ExclusionReason] = Counter()
        for entry in self.world.ledger:
            call_id = entry["request_id"].rpartition("-")[0]
            if attempts[call_id] != trajectory.attempt:
                reason = ExclusionReason.EARLIER_ATTEMPT
            elif not END_POLICY[trajectory.termination_reason].trainable:
                reason = ExclusionReason.UNTRAINABLE_END
            elif call_id in self.beside:
                reason = ExclusionReason.SIDE_CALL
            elif call_id in (self.lost - self.got_again) | self.superseded:
                reason = ExclusionReason.ORPHAN
            elif call_id in self.aborted:
                reason = ExclusionReason.ABORTED
            else:
                continue
            known[reason] += len(entry["sampled_ids"])
        return {reason: tokens for reason, tokens in sorted(known.items()) if tokens}

    def misjudged(self, trajectory: TrajectoryBuilt) -> set[str]:
        """Return the calls of which not each answer is trained in one row, or any although none arrived."""
        trained = Counter(
            row.calls[number] for row in trajectory.rows for number in set(int32s(row.call_of)[uint8s(row.loss_mask) > 0].tolist())
        )
        unwanted = self.aborted | self.beside | (self.lost - self.got_again) | self.superseded
        attempts = {call.call_id: call.attempt for call in trajectory.calls}
        answers = Counter(entry["request_id"].rpartition("-")[0] for entry in self.world.ledger if entry["sampled_ids"])
        trainable = END_POLICY[trajectory.termination_reason].trainable
        wanted = {
            call: times for call, times in answers.items() if trainable and attempts[call] == trajectory.attempt and call not in unwanted
        }
        return {call for call in trained.keys() | wanted.keys() if trained[call] != wanted.get(call, 0)}

    def ask(self, talk: list[Message], number: int, *, finish: FinishReason = FinishReason.STOP) -> None:
        placed, opened = self.world.open(talk, self.tools)
        text = TEXTS[number % len(TEXTS)] or ("" if finish is FinishReason.STOP else "x")  # an engine samples at least one token
        answer = self.world.close(placed, opened, [text], finish)[0]
        context = self.world.session.forest.context(self.world.session.forest.calls[opened.call_id])
        assert context.tolist() == placed.context.tolist() == self.world.ledger[-1]["fed_ids"]
        self.last[id(talk)] = opened.call_id
        if finish is FinishReason.ABORTED:
            self.aborted.add(opened.call_id)
        talk.append(answer)

    def user(self, talk: list[Message], number: int) -> None:
        talk.append({"role": "user", "content": f"then {TEXTS[number % len(TEXTS)]}"})

    def tool(self, talk: list[Message], number: int) -> None:
        calls = talk[-1].get("tool_calls") or ()
        talk.extend({"role": "tool", "tool_call_id": call["id"], "content": f"<result {number}>"} for call in calls)

    def vote(self, talk: list[Message], number: int) -> None:
        self.world.close(*self.world.open(talk, self.tools), [TEXTS[number % len(TEXTS)]])
        self.ask(talk, number)

    def vote_at_once(self, talk: list[Message], number: int) -> None:
        """Two equal requests are open together; the second ends first."""
        first, second = self.world.open(talk, self.tools), self.world.open(talk, self.tools)
        for one in (first, second):
            self.world.begin(*one)
        self.world.close(*second, [TEXTS[number % len(TEXTS)]])
        talk.append(self.world.close(*first, [TEXTS[(number + number % 2) % len(TEXTS)]])[0])
        self.last[id(talk)] = first[1].call_id

    def live(self, talk: list[Message], number: int) -> None:
        """A call is open while other things happen."""
        del number
        placed, opened = self.world.open(talk, self.tools)
        self.world.begin(placed, opened)
        self.pending.append((talk[:], placed, opened))

    def end_live(self, talk: list[Message], number: int) -> None:
        """One of them ends; its conversation continues from there, beside the others."""
        del talk
        if self.pending:
            history, placed, opened = self.pending.pop(number % len(self.pending))
            self.talks.append([*history, *self.world.close(placed, opened, [TEXTS[number % len(TEXTS)]])])

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
            self.lost.add(call_id)

    def retry(self, talk: list[Message], number: int) -> None:
        placed, opened = self.world.open(talk, self.tools)
        self.world.close(placed, opened, [TEXTS[number % len(TEXTS)]])
        self.superseded.add(opened.call_id)
        talk.append(self.world.close(*self.world.open(talk, self.tools, retry_of=opened.call_id), [TEXTS[(number + 1) % len(TEXTS)]])[0])

    def retry_answered(self, talk: list[Message], number: int) -> None:
        """Another request gets an answer; with an odd number its harness leaves too."""
        if (call_id := self.last.get(id(talk))) is not None and call_id in self.world.session.forest.calls:
            request_id = f"retry{len(self.world.events)}"
            self.world.deliver(call_id, request_id)
            if number % 2 == 0:
                self.got_again.add(call_id)
            else:
                self.world.undeliver(call_id, request_id)

    def forget(self, talk: list[Message], number: int) -> None:
        """Send a turn back without its reasoning."""
        self.world.changed = True
        at = number % len(talk)
        talk[at] = {name: value for name, value in talk[at].items() if name != "reasoning"}

    def keyed(self, talk: list[Message], number: int) -> None:
        """Send answers back with a key: the right one, or a foreign one."""
        for at, message in enumerate(talk):
            if message["role"] == "assistant":
                talk[at] = message | {"key": answer_key(self.last.get(id(talk), "c1"), number % 2)}

    def noise(self, talk: list[Message], number: int) -> None:
        """Text that varies without meaning, in another place each time."""
        self.world.changed = True
        for at, message in enumerate(talk):
            if message["role"] in {"system", "tool"}:
                clean = str(message["content"]).rpartition("] ")[2]
                talk[at] = message | {"content": NOISE.format(number=number) + clean if (at + number) % 2 else clean}

    def reported(self, talk: list[Message], number: int) -> None:
        """An engine that renders itself: it agrees, it re-tokenises the history, or it closes turns in its own way."""
        placed, opened = self.world.open(talk, self.tools)
        own = self.world.renderer.render(list(placed.history), self.tools or None)
        told = (placed.context, own, np.insert(placed.context, len(placed.context) - len(placed.prompt_delta_ids), [10, 10]))[number % 3]
        self.world.odd_glue |= number % 3 == 2
        talk.append(self.world.close(placed, opened, [TEXTS[number % len(TEXTS)]], reported=told.astype(np.int32))[0])
        self.last[id(talk)] = opened.call_id

    def rewrite(self, talk: list[Message], number: int) -> None:
        at = number % len(talk)
        talk[at] = talk[at] | {"content": f"rewritten {number}"}

    def drop(self, talk: list[Message], number: int) -> None:
        del talk[1 + number % len(talk) :]

    def alter(self, talk: list[Message], number: int) -> None:
        self.world.changed = True
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
        self.beside.add(f"c{self.world.calls}")

    def retool(self, talk: list[Message], number: int) -> None:
        del talk
        self.tools = [{"name": f"tool{at}", "parameters": {}} for at in range(number % 3)]

    def together(self, talk: list[Message], number: int) -> None:
        first, second = self.world.open(talk, self.tools), self.world.open([*talk, {"role": "user", "content": "b"}], self.tools)
        self.world.close(*second, [TEXTS[number % len(TEXTS)]])
        talk.append(self.world.close(*first, [TEXTS[(number + 1) % len(TEXTS)]])[0])

    def attempt(self, talk: list[Message], number: int) -> None:
        del talk
        if number < 3 and self.world.session.attempt < 3:
            self.break_off(CallFailure.CANCELLED)
            self.world.start(self.world.session.attempt + 1)
            self.begin()

    def take_over(self, talk: list[Message], number: int) -> None:
        """Another gateway reads the log, parts of it twice, and continues."""
        del talk
        session = folded(self.world.log, times=1 + number % 2)
        self.world.session = session
        self.world.history = History(session.forest, QUIRKS, session.attempt)
        self.break_off(CallFailure.OWNER_LOST)
