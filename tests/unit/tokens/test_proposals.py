"""What a session's calls say of a harness that nobody described."""

import tomllib
from pathlib import Path

import pytest
from tests.support.world import World, tool, user
from tests.unit.tokens.test_conversations import AGENT, CALL, TITLE, TOOLS, work

from evener.harnesses.quirks_file import read_quirks
from evener.proto.sessions import FinishReason
from evener.proto.spec import Noise, Quirks, SideCall, Tolerance
from evener.tokens.conversation import given_messages
from evener.tokens.digests import Message
from evener.tokens.proposals import propose
from evener.tokens.quirks_toml import quirks_toml
from evener.tokens.text_differences import differences


def asked(quirks: Quirks | None = None, *, title: bool = False, drop: bool = False, clock: bool = False, trim: bool = False) -> World:
    """A harness that does these things, three turns and an answer long."""
    world = World(quirks=quirks)
    messages: list[Message] = [{"role": "system", "content": "be good there"}, user("do the thing")]
    if title:
        world.ask(TITLE, "A thing")
    for number in range(4):
        if clock:
            messages[0] = {"role": "system", "content": f"be good there\nIt is 1{number}:0{number} now.\nAnd brief."}
        answer = world.ask(messages, f"hm {number}</think>  see {number} " + (CALL if number < 3 else "it rains"), tools=TOOLS)
        if drop:
            answer = {name: value for name, value in answer.items() if name != "reasoning"}
        if trim:
            answer = answer | {"content": answer["content"].strip()}
        messages += [answer, *([tool(answer, "rain")] if number < 3 else [])]
    return world


@pytest.mark.parametrize(
    ("world", "rows", "because"),
    [
        (asked(title=True), 1, ["a call beside the agent's work: '^\\\\s*You write titles\\\\.'"]),
        (asked(drop=True), 1, ["3 answers came back without their reasoning"]),
        (asked(trim=True), 1, ["3 answers came back with white space trimmed"]),
        (asked(drop=True, trim=True), 1, ["3 answers came back without their reasoning", "3 answers came back with white space trimmed"]),
        (
            asked(clock=True),
            1,
            [r"text of system messages changes without meaning: /(?<=It is )\d+:\d+/ would cut '10:00', '11:01'"],
        ),
    ],
    ids=["title", "reasoning_dropped", "trimmed", "both", "clock"],
)
def test_a_session_with_what_is_proposed_has_one_row_and_nothing_more_to_propose(
    world: World, rows: int, because: list[str], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The text is a file that can be given; what it says is what was seen."""
    proposal = propose(world.session)
    assert proposal is not None
    assert sorted(proposal.because) == sorted(because)
    (tmp_path / "mine.toml").write_text(quirks_toml(proposal.quirks))
    quirks = read_quirks(tmp_path / "mine.toml")
    assert quirks == proposal.quirks

    kind = request.node.callspec.id
    drop, trim = kind in {"reasoning_dropped", "both"}, kind in {"trimmed", "both"}
    again = asked(quirks, title=kind == "title", drop=drop, trim=trim, clock=kind == "clock")
    assert propose(again.session) is None
    assert len(again.seal().rows) == rows


def test_nothing_is_proposed_for_a_harness_that_keeps_its_history() -> None:
    """Nor for several prompts of one program, votes, a rewritten turn, or an answer that was cut."""
    world = World()
    for prompt in ("the capital of France", "the capital of Italy"):
        first = world.ask([user(prompt)], f"{prompt} is there")
        world.ask([user(prompt), first, user("why?")], "because", finish=FinishReason.LENGTH)
    messages = work(world)
    world.ask(messages, "yes", tools=TOOLS)
    world.ask(messages, "no", tools=TOOLS)
    for step in ("1", "2"):
        branch = [*messages[:2], user(f"try step {step} of it")]
        world.ask([*branch, world.ask(branch, "tried", tools=TOOLS), user("on")], "well", tools=TOOLS)
    world.ask([*messages[:2], {"role": "assistant", "content": "something else"}, user("so?")], "well", tools=TOOLS)

    assert propose(world.session) is None


def test_call_without_tools_is_recognised_by_its_last_message_where_it_has_no_prompt_of_its_own() -> None:
    """Under the agent's own system prompt."""
    world = World()
    world.ask([AGENT[0], user("Give a short title to: the thing")], "A thing")
    world.ask(work(world), "It rains.", tools=TOOLS)
    proposal = propose(world.session)

    assert proposal is not None
    assert proposal.quirks.side_calls == (SideCall(name="title", last=r"^\s*Give a short title to: the thing", tools=False),)


def test_what_is_declared_stays_in_the_file() -> None:
    """So that it can take the place of the one before."""
    declared = Quirks(tolerances=(Tolerance.NUMBERS_LOOSE,), noise=(Noise(where="tool", pattern="x"),), retry_header="x-retry")
    proposal = propose(asked(declared, drop=True).session)

    assert proposal is not None
    assert proposal.quirks.tolerances == (Tolerance.NUMBERS_LOOSE, Tolerance.REASONING_ABSENT)
    assert (proposal.quirks.noise, proposal.quirks.retry_header) == (declared.noise, "x-retry")


@pytest.mark.parametrize(
    ("one", "other", "patterns"),
    [
        ("at 10:31 there", "at 9:05 there", (r"(?<=at )\d+:\d+",)),
        ("id: a3f9-22\nand 7 more", "id: 77bc-d1\nand 9 more", (r"(?<=id: )\S+", r"(?<=and )\d+")),
        ("run 4f2a, step 7 of it", "run 9b1c, step 8 of it", (r"(?<=run )\d+[A-Za-z]+\d+[A-Za-z]+,", r"(?<=run  step )\d+")),
        ("quite another text", "no word of it is the same", ()),
        ("the same", "the same", ()),
        ("10:31", "9:05", ()),
        ("grows", "grows and grows", ()),
        ("- a.py\n- main.py\n- Never delete files", "- a.py\n- util-2.py\n- Never delete files", ()),
        ("see main.py and\nsee the rules", "see util-2.py and\nsee the rules", ()),
        ("at 7:01, at 8:01", "at 7:02, at 8:02", (r"(?<=at )\d+:\d+,", r"(?<=at  at )\d+:\d+")),
    ],
)
def test_varying_words_are_found_or_left(one: str, other: str, patterns: tuple[str, ...]) -> None:
    """Where both texts are equal without them."""
    assert tuple(found.pattern for found in differences(one, other)) == patterns


def test_nothing_is_proposed_that_would_cut_a_message_that_stays_as_it_is() -> None:
    """A pattern from one message is applied to all of its role: the name of a file must not take words from the task."""
    world = World()
    messages: list[Message] = [{"role": "system", "content": "opened file main.py"}, {"role": "system", "content": "opened file .env"}]
    answer = world.ask([*messages, user("go")], "went")
    messages[0] = {"role": "system", "content": "opened file util-2.py"}
    world.ask([*messages, user("go"), answer, user("on")], "done")

    assert propose(world.session) is None


def test_a_history_of_many_turns_is_read_without_recursion() -> None:
    """Each follows the one before."""
    world = World()
    world.odd_glue = True  # no render of each history
    messages = [user("go")]
    for number in range(600):
        messages += [world.ask(messages, "x"), user(f"{number}")]
    last = world.session.forest.calls[f"c{world.calls}"]

    assert given_messages(world.session.forest, last) == messages[:-2]


@pytest.mark.parametrize("text", ["\U0001f600 Title of\u200bthis", "a\x7fb", "it's 'a' \\d+\xa0x", 'say "\n\t"', r"\d+", "\U000e0001"])
def test_file_of_quirks_has_any_text_as_it_is(text: str) -> None:
    """An emoji beside a character that nobody sees made a file that no parser reads."""
    quirks = Quirks(side_calls=(SideCall(name="t", system=text),), noise=(Noise(where="user", pattern=text),), compacted=text)
    table = tomllib.loads(quirks_toml(quirks))
    assert (table["side_calls"][0]["system"], table["noise"][0]["pattern"], table["compacted"]) == (text, text, text)
