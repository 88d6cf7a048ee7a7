"""Which conversation a call is of, what its root and its row are called, and what the agent said last."""

from itertools import permutations
from typing import Any

import pytest
from tests.support.toy import START
from tests.support.world import World, plain, replay, tool, user

from evener.audit.engine_ledger import check
from evener.proto.codec import encode
from evener.proto.reasons import CallFailure, TerminationReason
from evener.proto.sessions import BridgedBy, CallOpened, FinishReason, RootReason
from evener.proto.spec import Quirks, SideCall, Tolerance
from evener.proto.trajectories import RowKind, TrajectoryBuilt
from evener.templates.port import Bridge
from evener.tokens.digests import Message
from evener.tokens.kinds import last_message, other_message
from evener.tokens.place import Placed

AGENT: list[Message] = [{"role": "system", "content": "be good there"}, user("do the thing")]
TITLE: list[Message] = [{"role": "system", "content": "You write titles."}, user("Title of: do the thing")]
TOOLS: list[Message] = [{"name": "run", "description": "runs", "parameters": {}}]
CALL = 'let me see<call>{"cmd": "there in the hen"}'
STEPS = ("open title", "open agent", "close title", "close agent")
ORDERS = [one for one in permutations(STEPS) if one.index(STEPS[0]) < one.index(STEPS[2]) and one.index(STEPS[1]) < one.index(STEPS[3])]
"""Each is opened before it is closed."""


def sealed(world: World) -> TrajectoryBuilt:
    """Seal; the checker finds nothing, and a replay of the log gives the same bytes."""
    trajectory = world.seal()
    assert check([plain(trajectory)], world.ledger_lines()) == []
    assert encode(replay(world.log)) == encode(trajectory)
    assert not trajectory.inconsistencies
    return trajectory


def labels(trajectory: TrajectoryBuilt) -> list[tuple[RootReason, RowKind]]:
    return [(row.root, row.kind) for row in trajectory.rows]


def work(world: World, turns: int = 2, tools: list[Message] = TOOLS) -> list[Message]:
    """Have the agent call a tool so many times; return its history."""
    messages = list(AGENT)
    for _ in range(turns):
        messages.append(world.ask(messages, CALL, tools=tools))
        messages.append(tool(messages[-1], "rain there"))
    return messages


class TestLastMessage:
    """What the grader `answer` grades."""

    def test_after_a_compaction_it_is_what_was_said_behind_the_summary(self) -> None:
        """Codex asks for the summary without tools, and begins anew with it."""
        world = World()
        messages = work(world)
        summary = world.ask([*messages, user("Summarize.")], "the thing was run and it rains")
        again = [*AGENT, user(f"So far: {summary['content']}")]
        again.append(world.ask(again, CALL, tools=TOOLS))
        again.append(tool(again[-1], "in the end"))
        world.ask(again, "Done.", tools=TOOLS)
        trajectory = sealed(world)

        assert trajectory.answer == "Done."
        assert labels(trajectory) == [
            (RootReason.FIRST, RowKind.MAIN),
            (RootReason.TOOLS_CHANGED, RowKind.BRANCH),
            (RootReason.COMPACTION, RowKind.COMPACTION),
        ]

    def test_after_a_compaction_that_changes_the_first_message(self) -> None:
        """The summary is told by what it quotes, under the same system prompt and tools."""
        world = World()
        messages = work(world)
        summary = world.ask([*messages, user("Summarize.")], "the thing was run and it rains in the north", tools=TOOLS)
        again = [AGENT[0], user(f"This goes on from: {summary['content']}")]
        world.ask(again, "Done.", tools=TOOLS)
        trajectory = sealed(world)

        assert trajectory.answer == "Done."
        assert labels(trajectory) == [(RootReason.FIRST, RowKind.MAIN), (RootReason.COMPACTION, RowKind.COMPACTION)]

    @pytest.mark.parametrize("marked", [True, False], ids=["marked", "unmarked"])
    def test_after_a_compaction_that_follows_a_sub_agent_it_is_the_agents(self, *, marked: bool) -> None:
        """The summary quotes nothing, and the sub-agent has the agent's system prompt and tools, and was answered last."""
        world = World(quirks=Quirks(compacted="^Summary of the work"))
        messages = work(world)[:-1]
        placed, opened = world.open([AGENT[0], user("the part")], TOOLS, sub_agent=marked)
        world.close(placed, opened, ["the part is done there"])
        messages.append(tool(messages[-1], "the part is done there"))
        again = [AGENT[0], user("Summary of the work so far.")]
        again.append(world.ask(again, CALL, tools=TOOLS))
        world.ask([*again, tool(again[-1], "in the end")], "Done.", tools=TOOLS)
        trajectory = sealed(world)

        assert trajectory.answer == "Done."
        assert labels(trajectory) == [
            (RootReason.FIRST, RowKind.MAIN),
            (RootReason.SUB_AGENT, RowKind.SUB_AGENT),
            (RootReason.COMPACTION, RowKind.COMPACTION),
        ]

    def test_after_a_compaction_between_a_tool_and_its_result(self) -> None:
        """The summary is asked for apart. It is no sub-agent that begins with it, though the agent waits."""
        world = World()
        messages = work(world, 3)
        told = world.ask([{"role": "system", "content": "You sum up."}, user(f"So far: {messages[2:]}")], "it was run and it rains there")
        again = [AGENT[0], user(f"Summary of the work. {told['content']}")]
        again.append(world.ask(again, CALL, tools=TOOLS))
        world.ask([*again, tool(again[-1], "in the end")], "Done.", tools=TOOLS)
        trajectory = sealed(world)

        assert trajectory.answer == "Done."
        assert labels(trajectory) == [
            (RootReason.FIRST, RowKind.MAIN),
            (RootReason.FIRST, RowKind.CONVERSATION),
            (RootReason.COMPACTION, RowKind.COMPACTION),
        ]

    @pytest.mark.parametrize("marked", [True, False], ids=["marked", "unmarked"])
    def test_what_nobody_marked_as_a_sub_agents_may_be_the_agents(self, *, marked: bool) -> None:
        """A summary that quotes nothing took the place of the agent's history, which still waits."""
        world = World()
        work(world, 3)
        placed, opened = world.open([AGENT[0], user("Summary of the work: it rains.")], TOOLS, sub_agent=marked)
        world.close(placed, opened, ["Done."])
        trajectory = sealed(world)
        other = other_message(world.session)

        assert labels(trajectory) == [(RootReason.FIRST, RowKind.MAIN), (RootReason.SUB_AGENT, RowKind.SUB_AGENT)]
        assert (other and other.call_id) == (None if marked else opened.call_id)

    @pytest.mark.parametrize("told", ["the part is done there", "it goes on"], ids=["quotes_another", "quotes_none"])
    def test_sub_agent_under_the_agents_prompt_is_no_compaction(self, told: str) -> None:
        """Though its task quotes what another sub-agent said."""
        world = World()
        messages = work(world, 3)[:-1]
        world.ask([AGENT[0], user("the part")], "the part is done there, in the rain", tools=TOOLS)
        world.ask([AGENT[0], user(f"the rest: {told}, in the rain")], "the rest is done", tools=TOOLS)
        world.ask([*messages, tool(messages[-1], "the rest is done")], "It rains.", tools=TOOLS)
        trajectory = sealed(world)

        assert trajectory.answer == "It rains."
        assert [row.kind for row in trajectory.rows] == [RowKind.MAIN, RowKind.SUB_AGENT, RowKind.SUB_AGENT]

    def test_declared_summary_that_quotes_an_answer_goes_on_from_its_conversation(self) -> None:
        """Though another conversation under the same system prompt was answered later."""
        world = World(quirks=Quirks(compacted="^Summary of the work"))
        messages = work(world)
        summary = world.ask([*messages, user("Summarize.")], "the thing was run and it rains in the north", tools=TOOLS)
        world.ask([AGENT[0], user("another thing")], "fine there", tools=TOOLS)
        world.ask([AGENT[0], user(f"Summary of the work so far. {summary['content']}")], "Done.", tools=TOOLS)

        assert sealed(world).answer == "Done."

    @pytest.mark.parametrize("tools", [TOOLS, []], ids=["with_tools", "without_tools"])
    def test_title_that_was_asked_for_first_is_not_graded(self, tools: list[Message]) -> None:
        """Nobody declared it as a side call."""
        world = World()
        world.ask(TITLE, "A fine thing in the hen")
        messages = work(world, tools=tools)
        world.ask(messages, "It rains.", tools=tools)
        trajectory = sealed(world)

        assert trajectory.answer == "It rains."
        assert labels(trajectory) == [(RootReason.FIRST, RowKind.CONVERSATION), (RootReason.FIRST, RowKind.MAIN)]

    @pytest.mark.parametrize("order", [[TITLE, AGENT], [AGENT, TITLE]], ids=["title_first", "agent_first"])
    def test_of_single_answers_without_tools_the_last_is_graded_and_the_other_told(self, order: list[list[Message]]) -> None:
        """Titles are mostly asked for before the work; nothing says which of the two is one."""
        world = World()
        for messages in order:
            world.ask(messages, "said in the hen there")
        trajectory = sealed(world)
        other = other_message(world.session)

        assert [row.kind for row in trajectory.rows] == [RowKind.CONVERSATION, RowKind.MAIN]
        assert (last := last_message(world.session)) is not None
        assert last.call_id == "c2"
        assert other is not None
        assert other.call_id == "c1"

    @pytest.mark.parametrize("ended", [True, False], ids=["after_a_message", "after_a_tool_call"])
    def test_in_a_task_with_steps_it_is_the_last_steps(self, *, ended: bool) -> None:
        """The harness is started anew for each: with another instruction, and a title before it. Nobody waits for an earlier step."""
        world = World()
        world.step = 1
        messages = work(world)
        if ended:
            world.ask(messages, "The first step is done.", tools=TOOLS)
        world.step = 2
        world.ask(TITLE, "A title there")
        again = [AGENT[0], user("do the rest")]
        again.append(world.ask(again, CALL, tools=TOOLS))
        world.ask([*again, tool(again[-1], "in the end")], "Done.", tools=TOOLS)
        trajectory = sealed(world)

        assert trajectory.answer == "Done."
        assert labels(trajectory) == [
            (RootReason.FIRST, RowKind.MAIN),
            (RootReason.FIRST, RowKind.CONVERSATION),
            (RootReason.FIRST, RowKind.BRANCH),
        ]
        assert other_message(world.session) is None

    def test_a_later_steps_answer_does_not_excuse_an_earlier_steps_failure(self) -> None:
        """Another harness asked for it."""
        world = World()
        world.step = 1
        messages = work(world)
        world.fail(world.open(messages, TOOLS)[1], CallFailure.ENGINE_UNREACHABLE)
        world.step = 2
        world.ask([AGENT[0], user("do the rest")], "Done.", tools=TOOLS)

        assert world.seal().termination_reason is TerminationReason.INFRASTRUCTURE

    def test_conversation_that_a_later_step_goes_on_with_stays_the_main_one(self) -> None:
        """A title that the step asks for is none."""
        world = World()
        world.step = 1
        messages = work(world, 1, [])
        messages.append(world.ask(messages, "The first step is done."))
        world.step = 2
        world.ask([*messages, user("do the rest")], "Done.")
        world.ask(TITLE, "A title there")
        trajectory = sealed(world)

        assert trajectory.answer == "Done."
        assert labels(trajectory) == [(RootReason.FIRST, RowKind.MAIN), (RootReason.FIRST, RowKind.CONVERSATION)]

    def test_side_calls_sub_agents_and_lost_answers_say_nothing_for_the_agent(self) -> None:
        """All three come after its last message."""
        world = World(quirks=Quirks(side_calls=(SideCall(name="title", last="^Title"),)))
        messages = work(world, 1)
        world.ask([{"role": "system", "content": "helper"}, user("the part")], "the part is done", tools=TOOLS)
        messages.append(world.ask(messages, "It rains.", tools=TOOLS))
        world.ask([*messages, user("on")], "lost in the wire", tools=TOOLS)
        world.undeliver(f"c{world.calls}")
        world.ask([*messages, user("on")], "half an ans", tools=TOOLS, finish=FinishReason.ABORTED)
        world.ask(TITLE, "A title")
        placed, opened = world.open([*messages, user("for a helper")], TOOLS, sub_agent=True)
        world.close(placed, opened, ["said by the helper"])

        assert sealed(world).answer == "It rains."

    def test_it_is_the_last_in_the_log_where_a_turn_was_dropped(self) -> None:
        """A branch with fewer calls may be the later one."""
        world = World()
        messages = work(world, 3, [])
        world.ask(messages, "early")
        world.ask([*messages[:4], user("go back")], "late")

        assert sealed(world).answer == "late"

    def test_nothing_answered_is_no_message(self) -> None:
        """A title is not the agent's word, either."""
        world = World(quirks=Quirks(side_calls=(SideCall(name="title", last="^Title"),)))
        world.ask(TITLE, "A title")
        world.fail(world.open(AGENT, TOOLS)[1], CallFailure.CONTEXT_OVERFLOW)

        assert world.seal().answer is None


class TestResampled:
    """Answers that the harness asked again for."""

    @pytest.mark.parametrize("turns", [0, 2])
    def test_in_every_turn(self, turns: int) -> None:
        """The same request once more is a new sample, whether it is the first or extends an answer."""
        world = World()
        messages = work(world, turns, [])
        world.ask(messages, "yes then")
        world.ask(messages, "no then")

        assert sealed(world).accounting.resampled == len(world.ledger[-1]["sampled_ids"])

    def test_what_was_aborted_or_failed_before_was_no_sample(self) -> None:
        """So the first answer to it is no second one."""
        world = World()
        messages = work(world, 1, [])
        world.fail(world.open(messages)[1], CallFailure.ENGINE_UNREACHABLE)
        world.ask(messages, "half an ans", finish=FinishReason.ABORTED)
        world.ask(messages, "fine")

        assert sealed(world).accounting.resampled == 0

    def test_another_message_is_another_request(self) -> None:
        """A branch is no sample of the same."""
        world = World()
        messages = work(world, 1, [])
        world.ask([*messages, user("a")], "fine")
        world.ask([*messages, user("b")], "fine")

        assert sealed(world).accounting.resampled == 0


class TestAfterFailures:
    """A call that is tried again is named as if it came for the first time."""

    def test_first_call_is_first_also_beside_a_title(self) -> None:
        """Its failed twin is in the log, the title answered."""
        world = World()
        world.ask(TITLE, "A thing")
        world.fail(world.open(AGENT, TOOLS)[1], CallFailure.ENGINE_UNREACHABLE)
        world.ask(work(world, 1), "fine", tools=TOOLS)

        assert labels(sealed(world)) == [(RootReason.FIRST, RowKind.CONVERSATION), (RootReason.FIRST, RowKind.MAIN)]

    def test_after_an_aborted_answer_it_is_first_and_main(self) -> None:
        """Nothing was answered; the partial answer and its second try are of one conversation."""
        world = World()
        world.ask(AGENT, "half an ans", tools=TOOLS, finish=FinishReason.ABORTED)
        world.ask(work(world, 1), "fine", tools=TOOLS)
        trajectory = sealed(world)

        assert labels(trajectory) == [(RootReason.FIRST, RowKind.MAIN)]
        assert {call.placement.conversation for call in world.session.forest.calls.values() if call.placement.root} == {
            world.session.forest.conversation("c1")
        }

    def test_faulty_first_turn_that_was_dropped_is_no_compaction(self) -> None:
        """The harness says what was wrong, without the turn itself."""
        world = World()
        world.ask(AGENT, "<call>{broken", tools=TOOLS)
        again = [*AGENT, user("Your last call was no JSON.")]
        again.append(world.ask(again, CALL, tools=TOOLS))
        world.ask([*again, tool(again[-1], "rain")], "fine", tools=TOOLS)
        trajectory = sealed(world)

        assert labels(trajectory) == [(RootReason.FIRST, RowKind.MAIN), (RootReason.REWRITTEN, RowKind.BRANCH)]
        assert trajectory.answer == "fine"

    @pytest.mark.parametrize("run_again", [False, True])
    def test_call_that_failed_beside_a_waiting_conversation_makes_no_sub_agent(self, *, run_again: bool) -> None:
        """Nor does one of an earlier attempt: tried again when nobody waits, it begins the agent's work."""
        world = World()
        waiting = work(world, 1, [{"name": "plan"}])
        helper: list[Message] = [{"role": "system", "content": "helper"}, user("the work")]
        placed, opened = world.open(helper, TOOLS)
        assert placed.placement.root is RootReason.SUB_AGENT
        if run_again:
            world.close(placed, opened, ["fine"])
            world.start(2)
        else:
            world.fail(opened, CallFailure.ENGINE_UNREACHABLE)
            world.ask(waiting, "The plan is there.", tools=[{"name": "plan"}])
        world.ask(helper, "It rains.", tools=TOOLS)
        trajectory = sealed(world)

        kinds = {row.calls[-1]: (row.root, row.kind) for row in trajectory.rows}
        assert kinds[f"c{world.calls}"] == (RootReason.FIRST, RowKind.MAIN if run_again else RowKind.CONVERSATION)

    def test_call_that_failed_under_other_tools_leaves_no_trace(self) -> None:
        """What it knew of the beginning is not known."""
        world = World()
        messages = work(world, 2)
        other = [*TOOLS, {"name": "read"}]
        world.fail(world.open(messages, other)[1], CallFailure.ENGINE_UNREACHABLE)
        placed, opened = world.open(messages, other)
        world.close(placed, opened, ["fine"])

        assert placed.placement.root is RootReason.TOOLS_CHANGED
        sealed(world)


class TestBesideOthers:
    """Conversations that nobody waits for."""

    @pytest.mark.parametrize("order", ORDERS, ids=" ".join)
    def test_a_race_with_a_title_changes_no_name(self, order: tuple[str, ...]) -> None:
        """Whichever is opened, logged or answered first, and though the agent is in the midst of its work."""
        world = World()
        asked = {"title": (TITLE, []), "agent": (AGENT, TOOLS)}
        opened: dict[str, tuple[Placed, CallOpened]] = {}
        messages: list[Message] = list(AGENT)
        for step, whose in (one.split() for one in order):
            if step == "open":
                history, tools = asked[whose]
                opened[whose] = world.open(history, tools)
                continue
            placed, call = opened[whose]
            answer = world.close(placed, call, ["A thing" if whose == "title" else CALL])[0]
            messages += [answer, tool(answer, "rain")] if whose == "agent" else []
        world.ask(messages, "It rains.", tools=TOOLS)
        trajectory = sealed(world)

        kinds = {row.calls[-1]: (row.root, row.kind) for row in trajectory.rows}
        assert kinds[f"c{world.calls}"] == (RootReason.FIRST, RowKind.MAIN)
        assert kinds[opened["title"][1].call_id] == (RootReason.FIRST, RowKind.CONVERSATION)
        assert trajectory.answer == "It rains."

    def test_unrelated_prompts_are_conversations(self) -> None:
        """Nobody called a tool: nobody has a sub-agent."""
        world = World()
        for prompt in ("the capital of France", "the capital of Italy", "the capital of Spain"):
            world.ask([user(prompt)], f"{prompt} is there")
        trajectory = sealed(world)

        kinds = [RowKind.CONVERSATION, RowKind.CONVERSATION, RowKind.MAIN]
        assert labels(trajectory) == [(RootReason.FIRST, kind) for kind in kinds]

    def test_sub_agent_works_while_another_conversation_waits_for_its_tools(self) -> None:
        """Its later roots are its own as well."""
        world = World()
        messages = work(world, 1)[:-1]
        helper = [{"role": "system", "content": "helper"}, user("the part")]
        answer = world.ask(helper, CALL, tools=TOOLS)
        world.ask([*helper, answer, tool(answer, "in the part")], "the part is done", tools=TOOLS)
        world.ask([*helper, user("no, again")], "the part is done again", tools=TOOLS)
        world.ask([*messages, tool(messages[-1], "the part is done again")], "It rains.", tools=TOOLS)
        trajectory = sealed(world)

        assert labels(trajectory) == [
            (RootReason.FIRST, RowKind.MAIN),
            (RootReason.SUB_AGENT, RowKind.SUB_AGENT),
            (RootReason.COMPACTION, RowKind.SUB_AGENT),
        ]
        assert trajectory.answer == "It rains."

    def test_system_prompt_with_a_clock_is_a_rewritten_history(self) -> None:
        """It holds an answer of ours: no sub-agent begins so, and no new conversation."""
        world = World()
        at_one = [{"role": "system", "content": "It is 1:00."}, AGENT[1]]
        answer = world.ask(at_one, CALL, tools=TOOLS)
        at_two = [{"role": "system", "content": "It is 2:00."}, AGENT[1], answer, tool(answer, "rain")]
        world.ask(at_two, "It rains.", tools=TOOLS)
        trajectory = sealed(world)

        assert labels(trajectory) == [(RootReason.FIRST, RowKind.MAIN), (RootReason.REWRITTEN, RowKind.BRANCH)]
        assert trajectory.answer == "It rains."

    def test_votes_at_once_are_one_conversation(self) -> None:
        """Each was placed before another was answered."""
        world = World()
        for number, (placed, opened) in enumerate([world.open(AGENT) for _ in range(3)]):
            world.close(placed, opened, [f"vote {number}"])
        trajectory = sealed(world)

        assert [row.kind for row in trajectory.rows] == [RowKind.MAIN, RowKind.BRANCH, RowKind.BRANCH]
        assert trajectory.answer == "vote 2"


class Stripping:
    """A renderer whose template drops all reasoning once the user speaks again."""

    def __init__(self, world: World) -> None:
        self._plain = world.renderer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    def bridge(self, before: Any, answer: Message, new: Any, tools: Any, *, closed: bool) -> Bridge | None:
        if any(m["role"] == "user" for m in new) and any("reasoning" in m for m in [*before, answer]):
            return None
        if any(m["role"] == "system" for m in new):  # a thing that it can never extend
            return None
        bridge = self._plain.bridge(before, answer, new, tools, closed=closed)
        assert bridge is None or bridge.by is BridgedBy.RENDERER
        return bridge


class TestStrippedReasoning:
    """Which of two reasons a root has whose history matches."""

    @pytest.mark.parametrize(
        ("texts", "new", "root"),
        [
            (["there in</think>" + CALL, "It rains."], user("on"), RootReason.THINKING_STRIPPED),
            ([CALL, "there in</think>It rains."], user("on"), RootReason.THINKING_STRIPPED),
            ([CALL, "It rains."], {"role": "system", "content": "be brief"}, RootReason.NO_BRIDGE),
            (["there in</think>" + CALL, "It rains."], {"role": "system", "content": "be brief"}, RootReason.NO_BRIDGE),
        ],
        ids=["an_earlier_turn", "the_last_turn", "no_reasoning", "another_cause"],
    )
    def test_the_reasoning_is_named_only_where_it_stands_in_the_way(self, texts: list[str], new: Message, root: RootReason) -> None:
        """Whichever turn it is of."""
        world = World()
        world.renderer = Stripping(world)  # type: ignore[assignment]  # renders alike
        messages = [*AGENT, world.ask(AGENT, texts[0])]
        messages.append(tool(messages[-1], "rain"))
        messages.append(world.ask(messages, texts[1]))
        placed, _ = world.open([*messages, new])

        assert placed.placement.root is root
        assert placed.context[0] == START

    def test_an_aborted_answer_was_not_stripped(self) -> None:
        """It is never extended, with reasoning or without."""
        world = World(quirks=Quirks(tolerances=(Tolerance.REASONING_ABSENT,)))
        answer = world.ask(AGENT, "there in</think>half an ans", finish=FinishReason.ABORTED)
        placed, _ = world.open([*AGENT, answer, user("go on")])

        assert placed.placement.root is RootReason.NO_BRIDGE
