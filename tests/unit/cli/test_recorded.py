"""What `record` and `show` say of a session: nothing is lost without a word."""

import pytest
from tests.support.world import World, user
from tests.unit.cli.test_session_text import printed
from tests.unit.tokens.test_conversations import AGENT, TITLE, TOOLS, Stripping, work

from evener.cli.record_summary import line, words
from evener.cli.session_remarks import notes
from evener.client.session_views import SessionSource, SessionView
from evener.dialects.registry import UNSET, variables
from evener.proto.reasons import CallFailure
from evener.proto.sessions import Failures, FinishReason, RootReason
from evener.proto.spec import GraderSpec, HarnessSpec, Purpose, Strategy
from evener.reconstructor.view import view_of
from evener.tokens.remarks import thinking_stripped


def recording() -> World:
    return World(harness=HarnessSpec(name="none", sandbox="none"), purpose=Purpose.COLLECT)


def viewed(world: World) -> SessionView:
    world.seal()
    return view_of(world.session, SessionSource.LOG, Strategy.TREE)


def test_recording_that_was_cut_says_what_had_no_answer_and_keeps_its_rows() -> None:
    """Its program took the cut stream for a success."""
    world = recording()
    answer = world.ask(AGENT, "a good sample")
    world.ask([*AGENT, answer, user("on")], "half an ans", finish=FinishReason.ABORTED)
    world.fail(world.open([*AGENT, answer, user("on")])[1], CallFailure.ENGINE_UNREACHABLE, "no answer within 3 s")
    view = viewed(world)
    half = len(world.ledger[1]["sampled_ids"])

    told = line(view, None, 0)
    assert (told["termination_reason"], told["rows"], told["calls"], sum(told["excluded"].values())) == ("finished", 1, 3, half)
    assert list(words(view)) == [
        "session t.0 ended as finished: its last call had no answer (engine_unreachable), and a recording cannot be run again",
        "1 of its 3 calls had no answer: engine_unreachable (no answer within 3 s)",
        f"{half} of its {told['tokens']} sampled tokens are in no row: {half} aborted",
    ]


def test_recording_without_a_call_says_so() -> None:
    """The program asked somebody else."""
    assert list(words(viewed(recording()))) == [
        "session t.0 has no call: the program asked no model, or did not use the base URL that it was given"
    ]


def test_recording_whose_requests_were_all_refused_says_why() -> None:
    """The log has no call of a request that nobody could read, or that was too long."""
    world = recording()
    world.seal(1, failures=(Failures(reason=CallFailure.MALFORMED, count=2, detail="messages: missing"),))
    said = list(words(view_of(world.session, SessionSource.LOG, Strategy.TREE)))
    assert "session t.0 has no call: 2 requests got no answer, as malformed (messages: missing)" in said
    assert not any("asked no model" in one for one in said)


def test_recording_that_went_well_says_nothing_more() -> None:
    """All tokens are in rows."""
    world = recording()
    world.ask(AGENT, "fine")

    assert list(words(viewed(world))) == []


def test_quirks_that_were_seen_are_shown_with_a_file_to_give() -> None:
    """Below the tree, and named where a recording ends."""
    world = recording()
    world.ask(TITLE, "A thing")
    world.ask(work(world), "It rains.", tools=TOOLS)
    view = viewed(world)
    shown = printed(notes(view))

    assert "A call beside the agent's work" in shown
    assert "\nA file for `evener record --quirks FILE`:" in shown
    assert "[[side_calls]]\nname = \"title\"\nsystem = '^\\s*You write titles\\.'\ntools = false" in shown
    assert list(words(view))[-1] == "`evener show t.0` shows these quirks as a file for --quirks"


def test_stripped_reasoning_is_named_where_it_costs_rows() -> None:
    """With the option that keeps it."""
    world = recording()
    world.renderer = Stripping(world)  # type: ignore[assignment]  # renders alike
    answer = world.ask(AGENT, "there in</think>It rains.")
    world.ask([*AGENT, answer, user("and then?")], "It snows.")
    shown = " ".join(printed(notes(viewed(world))).split())

    assert "1 call of 2 began a row of its own" in shown
    assert '`thinking = "all"` in the policy\'s configuration' in shown


@pytest.mark.parametrize("roots", [[], [None, RootReason.FIRST], [RootReason.REWRITTEN]])
def test_what_costs_nothing_is_not_named(roots: list[RootReason | None]) -> None:
    """Another root has another cause."""
    assert thinking_stripped(roots) is None


def test_a_program_gets_one_variable_for_each_key() -> None:
    """With two, Anthropic's client warns each time; one of the user's own must not stand beside it."""
    given = variables("http://relay", "key", "policy")

    assert "ANTHROPIC_API_KEY" in given
    assert not set(UNSET) & given.keys()


@pytest.mark.parametrize(("grader", "told"), [("answer", True), ("none", False)])
def test_message_after_a_summary_that_nothing_recognises_is_told_where_the_answer_is_graded(grader: str, *, told: bool) -> None:
    """The grader compared the summary, without a word."""
    world = World(grader=GraderSpec(name=grader))
    agent = [{"role": "system", "content": "You are an agent."}, user("Fix it.")]
    world.ask(agent, "In short: the bug is in line 3.", tools=TOOLS)
    world.ask([{"role": "system", "content": "You are an agent. 12:01"}, user("It goes on.")], "The number is 42.", tools=TOOLS)
    said = [one for one in words(viewed(world)) if "declare `compacted`" in one]
    assert len(said) == told
    assert not told or said[0].startswith("Call 1 is the agent's last message, which `answer` grades; call 2, of another conversation,")
