"""How a harness that nobody described marks retries, sub-agents and compacted histories, and what is no mark."""

from pathlib import Path

import pytest
from tests.support.world import World, tool, user
from tests.unit.tokens.test_conversations import AGENT, CALL, TOOLS, work

from evener.harnesses.quirks_file import read_quirks
from evener.proto.reasons import CallFailure
from evener.proto.relay import MAX_MARKS, marks_of
from evener.proto.spec import Quirks
from evener.tokens.digests import Message
from evener.tokens.proposals import propose
from evener.tokens.quirks_toml import quirks_toml

RETRY, SUB_AGENT = "x-stainless-retry-count", "x-my-sub-agent"
SUMMARY = "it rained there, and the thing was run in the hen house"
ASKED_FOR = [{"role": "system", "content": "You are good at the short of it."}, user("What was it?")]


def given(proposed: Quirks | None, folder: Path) -> Quirks:
    """Return the quirks as they come out of the file that is printed."""
    assert proposed is not None
    (folder / "mine.toml").write_text(quirks_toml(proposed))
    assert read_quirks(folder / "mine.toml") == proposed
    return proposed


def proposed(world: World) -> Quirks | None:
    proposal = propose(world.session)
    return None if proposal is None else proposal.quirks


def retried(*, marks: tuple[str, ...], first: tuple[str, ...] = (), quirks: Quirks | None = None) -> World:
    """A harness whose second request failed, and was sent again."""
    world = World(quirks=quirks)
    messages = work(world, turns=1)
    world.fail(world.open(messages, TOOLS, marks=first)[1], CallFailure.ENGINE_ERROR)
    placed, opened = world.open(messages, TOOLS, marks=marks)
    world.close(placed, opened, ["It rains."])
    return world


def test_header_that_comes_with_a_repeated_request_marks_retries(tmp_path: Path) -> None:
    """The first request had it not."""
    quirks = given(proposed(retried(marks=(RETRY,))), tmp_path)
    assert quirks == Quirks(retry_header=RETRY)
    assert propose(retried(marks=(RETRY,), quirks=quirks).session) is None


@pytest.mark.parametrize(
    ("marks", "first"), [((), ()), (("x-retry-limit",), ("x-retry-limit",)), ((SUB_AGENT,), ())], ids=["none", "always", "another"]
)
def test_header_that_says_nothing_of_a_retry_is_not_proposed(marks: tuple[str, ...], first: tuple[str, ...]) -> None:
    """A client that sends it with every request counts something else."""
    assert propose(retried(marks=marks, first=first).session) is None


def delegating(*, agent: tuple[str, ...], sub_agent: tuple[str, ...], quirks: Quirks | None = None) -> World:
    """A harness that asks a sub-agent under the agent's own prompt, beside its work."""
    world = World(quirks=quirks)
    messages = list(AGENT)
    declared = quirks is not None
    for _ in range(2):
        placed, opened = world.open(messages, TOOLS, marks=agent)
        messages.append(world.close(placed, opened, ["hm there"])[0])
        placed, opened = world.open([AGENT[0], user("a part of it")], TOOLS, marks=sub_agent, sub_agent=declared)
        world.close(placed, opened, ["a part"])
        messages.append(user("on there"))
    return world


def test_header_that_only_others_than_the_agent_send_marks_sub_agents(tmp_path: Path) -> None:
    """Their prompt is the agent's, so that nothing else tells them."""
    quirks = given(proposed(delegating(agent=(), sub_agent=(SUB_AGENT,))), tmp_path)
    assert quirks == Quirks(sub_agent_header=SUB_AGENT)
    assert propose(delegating(agent=(), sub_agent=(SUB_AGENT,), quirks=quirks).session) is None


@pytest.mark.parametrize(("agent", "sub_agent"), [((SUB_AGENT,), (SUB_AGENT,)), ((), ()), ((), (RETRY,))], ids=["all", "none", "another"])
def test_header_that_does_not_tell_sub_agents_apart_is_not_proposed(agent: tuple[str, ...], sub_agent: tuple[str, ...]) -> None:
    """Some clients name every agent."""
    assert propose(delegating(agent=agent, sub_agent=sub_agent).session) is None


def compacting(
    text: str,
    *,
    quirks: Quirks | None = None,
    system: Message = AGENT[0],
    tools: list[Message] = TOOLS,
    waits: bool = False,
    goes_on: bool = False,
) -> World:
    """A harness that has another prompt make a summary, and begins anew with this text. `waits`: its agent does, for a tool."""
    world = World(quirks=quirks)
    messages = work(world)
    if not waits:
        messages += [world.ask(messages, "so far it rains", tools=tools), user("on")]
    world.ask(ASKED_FOR, SUMMARY)
    again = [system, user(text)]
    again.append(world.ask(again, CALL, tools=tools))
    again.append(tool(again[-1], "in the end"))
    world.ask(again, "Done.", tools=tools)
    if goes_on:
        world.ask(messages, "It rains.", tools=TOOLS)
    return world


@pytest.mark.parametrize(
    ("text", "pattern", "waits"),
    [
        (f"What was there before this:\n<so>{SUMMARY}</so>", r"^\s*What was there before this:", False),
        (f"What was there before: {SUMMARY}. Go on!", r"^\s*What was there before:", False),
        ("A summary of what was before\n\nIt rained.", r"^\s*A summary of what was before", True),
    ],
    ids=["quoted", "same_line", "told"],
)
def test_message_in_the_place_of_the_history_is_known_by_its_beginning(text: str, pattern: str, tmp_path: Path, *, waits: bool) -> None:
    """The history went on elsewhere, and a result for which the agent waits never comes. Given the pattern, its last message is right."""
    quirks = given(proposed(compacting(text, waits=waits)), tmp_path)
    assert quirks.compacted == pattern
    world = compacting(text, waits=waits, quirks=quirks)
    assert propose(world.session) is None
    assert world.seal().answer == "Done."
    assert compacting(text, waits=waits).seal().answer != "Done."


@pytest.mark.parametrize(
    "world",
    [
        compacting("Run the other thing, in the hen house"),
        compacting(SUMMARY),
        compacting(f"So: {SUMMARY}"),
        compacting(f"What was there before this: {SUMMARY}", system={"role": "system", "content": "You are another."}),
        compacting(f"What was there before this: {SUMMARY}", tools=[]),
        compacting(f"What was there before this: {SUMMARY}", goes_on=True),
        compacting(f"do the thing after: {SUMMARY}", quirks=Quirks(compacted="^nothing")),
    ],
    ids=["another_task", "nothing_before", "little_before", "another_agent", "no_tools", "sub_agent", "declared"],
)
def test_message_that_may_be_anything_is_not_proposed(world: World) -> None:
    """A sub-agent's prompt may quote what was said too; but then the agent goes on."""
    found = proposed(world)
    assert found is None or found.compacted in {None, "^nothing"}


def test_pattern_that_the_agents_own_prompt_has_too_is_not_proposed() -> None:
    """It would make each of its histories a continuation of another one."""
    world = World()
    agent = [AGENT[0], user("do the thing there and then")]
    for _ in range(2):
        agent += [world.ask(agent, "hm there", tools=TOOLS), user("on there")]
    world.ask(ASKED_FOR, SUMMARY)
    world.ask([AGENT[0], user(f"do the thing there and then {SUMMARY}")], "Done.", tools=TOOLS)
    found = proposed(world)
    assert found is None or found.compacted is None


def test_headers_that_may_be_marks_are_named_and_nothing_else() -> None:
    """Their values stay out of the log, and their number is small."""
    headers = {RETRY: "1", "x-openai-subagent": "review", "x-claude-code-agent-id": "a1", "user-agent": "x/1", "authorization": "x"}
    assert marks_of(headers) == ("x-claude-code-agent-id", "x-openai-subagent", RETRY)
    assert marks_of({RETRY: "0", SUB_AGENT: ""}) == ()
    assert len(marks_of({f"x-retry-{number}": "1" for number in range(100)})) == MAX_MARKS
    assert marks_of({"x-retry-" + "x" * 1000: "1"}) == ()
