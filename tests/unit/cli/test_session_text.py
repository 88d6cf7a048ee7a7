"""Sessions on a terminal."""

from io import StringIO
from typing import Any

import msgspec
import numpy as np
import pytest
from rich.console import Console
from tests.support.builders import row
from tests.support.damages import recorded
from tests.support.world import World, user
from tests.unit.proto.golden_events import TRAJECTORY

from evener.cli.progress import task_table, tell_troubles
from evener.cli.session_grade import Output, SessionGrade, grade_facts, outputs, with_score
from evener.cli.session_text import accounts, conversations, heading
from evener.cli.session_tokens import table as token_lines
from evener.cli.session_tokens import tokens
from evener.cli.session_tree import forest
from evener.client.session_views import Score, ScoreView, SessionSource, SessionView, Use
from evener.client.views import TaskView
from evener.proto.arrays import pack_float32, pack_int32, pack_uint8
from evener.proto.blobs import BlobRef
from evener.proto.codec import decode
from evener.proto.reasons import CallFailure, ExclusionReason, TerminationReason
from evener.proto.sessions import Artifact
from evener.proto.spec import Purpose, Strategy
from evener.proto.state import Stage
from evener.proto.tasks import TaskOutcome
from evener.proto.trajectories import Row
from evener.reconstructor.view import view_of
from evener.tokens.session import SessionLog


def printed(shown: Any) -> str:
    out = StringIO()
    Console(file=out, width=160).print(shown)
    return out.getvalue()


def a_view(*messages: Any) -> SessionView:
    """The golden trajectory, its calls apart."""
    return SessionView(
        session_id=TRAJECTORY.session_id, source=SessionSource.LOG, attempts=(), calls=(), trajectory=TRAJECTORY, messages=tuple(messages)
    )


def recorded_view(*, sealed: bool = True) -> SessionView:
    """A session with everything in it."""
    session = SessionLog("t.0")
    for offset, data in enumerate(recorded() if sealed else recorded()[:-2]):
        session.apply(decode(data), offset=offset, record_at=100.0)
    return view_of(session, SessionSource.LOG, Strategy.TREE)


def a_row(**given: Any) -> Row:
    """Two given tokens, then three sampled: sure, unsure and trained, and without a logprob."""
    fields: dict[str, Any] = {name: getattr(row(), name) for name in Row.__struct_fields__}
    arrays = {
        "ids": pack_int32([1, 2, 3, 4, 5]),
        "loss_mask": pack_uint8([0, 0, 1, 1, 0]),
        "logprobs": pack_float32([np.nan, np.nan, np.log(0.95), np.log(0.2), np.nan]),
        "versions": pack_int32([-1, -1, 0, 0, 0]),
        "call_of": pack_int32([-1, -1, 0, 0, 0]),
    }
    return Row(**fields | arrays | given)


def test_tokens_are_coloured_by_probability_and_underlined_where_trained() -> None:
    """Given text is dim; a token without a logprob has a colour of its own."""
    text = tokens(a_row(), {1: b"Say ", 2: b"hi: ", 3: b"Hel", 4: b"lo", 5: b"!"})

    assert text.plain == "Say hi: Hello!"
    assert [(text.plain[span.start : span.end], span.style) for span in text.spans] == [
        ("Say hi: ", "dim"),
        ("Hel", "green underline"),
        ("lo", "dark_orange underline"),
        ("!", "grey50"),
    ]


def test_character_of_several_tokens_is_whole() -> None:
    """Bytes are joined before they are text."""
    first, second = "ü".encode()[:1], "ü".encode()[1:]
    pieces = {1: first, 2: second, 3: b"a", 4: b"b", 5: b"c"}

    assert tokens(a_row(), pieces).plain == "üabc"


def test_character_across_styles_has_the_style_of_the_token_that_completes_it() -> None:
    """Its bytes are of no use to a reader; what never becomes a character is shown as such."""
    smile = "😀".encode()
    text = tokens(a_row(), {1: b"a", 2: smile[:1], 3: smile[1:3], 4: smile[3:] + b"b", 5: smile[:2]})

    assert text.plain == "a😀b\ufffd"
    assert [(text.plain[span.start : span.end], span.style) for span in text.spans] == [
        ("a", "dim"),
        ("😀b", "dark_orange underline"),
        ("\ufffd", "grey50"),
    ]


def test_conversation_shows_tool_calls_reasoning_and_images() -> None:
    """What a person needs to follow the agent; markup in a model's text stays text."""
    messages = (
        {"role": "user", "content": [{"type": "text", "text": "Look"}, {"type": "image", "digest": "0", "media_type": "image/png"}]},
        {"role": "assistant", "content": "", "reasoning": "hm", "tool_calls": [{"id": "1", "name": "write", "arguments": {"path": "a"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "[bold]ok[/bold]"},
    )
    shown = printed(conversations(a_view(messages)))

    assert "row 0: main, 4 tokens, 2 trained, fed" in shown
    assert "Look\n[image]" in shown
    assert '→ write({"path": "a"})' in shown
    assert "[bold]ok[/bold]" in shown


def test_heading_accounts_for_every_token() -> None:
    """What was sampled, what is in rows, and why the rest is not; inconsistencies are not hidden."""
    shown = printed(accounts(a_view()))

    assert "5 sampled = 2 in rows + 3 excluded: 3 side_call" in shown
    assert "call c1: record damaged" in shown


def test_markup_in_what_a_harness_said_stays_text() -> None:
    """A detail can hold anything."""
    view = a_view()
    hurt = msgspec.structs.replace(view, trajectory=msgspec.structs.replace(TRAJECTORY, detail="[bold]no[/bold] [/]"))

    assert "[bold]no[/bold] [/]" in printed(heading(hurt))


def test_session_without_rows_shows_what_was_said() -> None:
    """It was cancelled: nothing of it is trained, and people want to see it all the same."""
    view = a_view(({"role": "user", "content": "Look"},))
    rowless = msgspec.structs.replace(view, trajectory=msgspec.structs.replace(TRAJECTORY, rows=()))

    assert "no row" in (shown := printed(conversations(rowless)))
    assert "Look" in shown


def test_end_by_a_call_that_failed_is_shown_with_its_words() -> None:
    """Prompt tokens and context, for example, where the end itself says nothing."""
    view = recorded_view()
    assert view.trajectory is not None
    told = "this model's maximum context length is 4096 tokens; the messages have 13000"
    last = msgspec.structs.replace(view.calls[-1], failure=CallFailure.CONTEXT_OVERFLOW, detail=told)
    over = msgspec.structs.replace(view.trajectory, termination_reason=TerminationReason.CONTEXT_OVERFLOW, detail="")
    view = msgspec.structs.replace(view, calls=(*view.calls[:-1], last), trajectory=over)

    assert f"context_overflow (last call: {told})" in " ".join(printed(heading(view)).split())


def test_reward_use_and_graders_output_are_shown() -> None:
    """The number, who gave it, what became of the session, and how the output ends."""
    view = recorded_view()
    evidence = (Artifact(name="test-stdout.txt", blob=BlobRef(digest="0" * 64, size=300)),)
    score = Score(
        reward=None,
        rewards={},
        ungraded="tests/test.sh exited with 4 and wrote neither reward.json nor reward.txt",
        grader="harbor",
        evidence=evidence,
        grading_seconds=1.25,
        tries=3,
    )
    use = Use(group_id="t", purpose=Purpose.TRAIN, delivered=True, reason="", excluded=ExclusionReason.UNGRADED)
    output = Output(name="test-stdout.txt", bytes=300, text="".join(f"line {number}\n" for number in range(30)))
    before = Output(name="try-1/test-stdout.txt", bytes=7, text="before\n")
    known = SessionGrade(score=ScoreView(session_id="t.0", score=score, use=use), outputs=(output, before))

    told = printed(heading(view, grade_facts(view, known)))
    assert "none, by harbor in 1.2 s, 3 tries: tests/test.sh exited with 4 and wrote neither" in " ".join(told.split())
    assert "no: it was excluded from its group: ungraded" in told
    tail = printed(outputs(known, whole=False))
    assert "grader: test-stdout.txt, 300 bytes, last 20 of 30 lines (--grader: all)" in tail
    assert ("before\n" in tail, "--grader also shows what earlier tries left" in tail) == (False, True)
    assert "before\n" in printed(outputs(known, whole=True))
    assert ("line 9\n" in tail, "line 10\n" in tail) == (False, True)
    assert "line 0\n" in printed(outputs(known, whole=True))
    assert with_score(view, known)["score"] is known


@pytest.mark.parametrize(
    ("use", "told"),
    [
        (None, "not yet: its group has not ended"),
        (
            Use(group_id="t", purpose=Purpose.TRAIN, delivered=False, reason="no engine", excluded=None),
            "no: its group was not delivered: no engine",
        ),
        (Use(group_id="t", purpose=Purpose.EVAL, delivered=True, reason="", excluded=None), "no: it was kept for eval"),
        (Use(group_id="t", purpose=Purpose.TRAIN, delivered=True, reason="", excluded=None), " tokens"),
    ],
)
def test_it_is_told_whether_a_session_was_trained_and_why_not(use: Use | None, told: str) -> None:
    score = Score(reward=0.5, rewards={"speed": 0.5}, ungraded=None, grader="harbor", evidence=(), grading_seconds=0.0, tries=1)
    view = recorded_view()
    reward, trained = grade_facts(view, SessionGrade(score=ScoreView(session_id="t.0", score=score, use=use), outputs=()))

    assert reward == ("reward", "0.5 (speed 0.5), by harbor in 0.0 s")
    assert told in trained[1]


def test_rewards_of_calls_are_shown_by_the_numbers_of_the_tree() -> None:
    view = recorded_view()
    rewards = {call.call_id: call.number / 4 for call in view.calls[:2]}
    score = Score(reward=0.5, rewards={}, call_rewards=rewards, ungraded=None, grader="python", evidence=(), grading_seconds=0.0, tries=1)
    facts = dict(grade_facts(view, SessionGrade(score=ScoreView(session_id="t.0", score=score, use=None), outputs=())))

    assert facts["call rewards"] == "#1 0.25, #2 0.5"


def test_row_token_by_token() -> None:
    """Place, id, call, mask, logprob, version and text; of given ones only what they are."""
    lines = token_lines(a_row(), {1: b"Say ", 2: b"hi: ", 3: b"Hel", 4: b"lo", 5: b"!"}).plain.splitlines()

    assert lines[0].split() == ["token", "id", "call", "mask", "logprob", "version", "text"]
    assert lines[1].split() == ["0", "1", "'Say", "'"]
    assert lines[4].split() == ["3", "4", "0", "1", "-1.6094", "0", "'lo'"]
    assert lines[5].split() == ["4", "5", "0", "0", "nan", "0", "'!'"]


def test_tree_shows_where_each_call_hangs_and_what_became_of_it() -> None:
    """All that a harness can do in one session: branches, roots with their reasons, and every reason for leaving out."""
    lines = printed(forest(recorded_view())).splitlines()
    told = "\n".join(lines)

    assert lines[0] == "t.0"
    assert "attempt 1" in told
    assert "attempt 2 finished" in told
    for part in (
        "root: first",
        "root: no_bridge",
        "extends #",
        "failed: owner_lost",
        "side call title",
        "excluded: orphan",
        "excluded: aborted",
        "excluded: earlier_attempt",
        "excluded: side_call",
        "not received",
        "retry of #",
        "in row 0 (context of ",
    ):
        assert part in told, part
    assert sum(line.count("#") > 0 for line in lines) == len(recorded_view().calls)


def test_open_session_is_shown_as_if_it_ended_now() -> None:
    """Its rows so far, and that it is open."""
    view = recorded_view(sealed=False)

    assert view.trajectory is None
    assert "still open" in printed(heading(view))
    assert "root: first" in printed(forest(view))
    assert "excluded" in printed(accounts(view))


def test_long_session_stays_flat() -> None:
    """Fifty turns, each tried twice: no line moves to the right with the turns."""
    world = World()
    said = [user("do the thing")]
    for number in range(50):
        world.ask(said, f"lost {number}")
        said += [world.ask(said, f"kept {number}"), user("go on")]
    aside = [*said[:2], user("and this")]
    world.ask([*aside, world.ask(aside, "a"), user("more")], "b")
    world.seal()
    lines = printed(forest(view_of(world.session, SessionSource.LOG, Strategy.TREE))).splitlines()

    assert max(len(line) - len(line.lstrip("│├└─ ")) for line in lines) <= 12
    assert sum(line.endswith("branch") for line in lines) == 1


def test_table_of_tasks() -> None:
    """One line a task."""
    view = TaskView(
        cursor=1,
        task_id="run.t",
        run_id="run",
        name="t",
        harness="script",
        purpose=Purpose.TRAIN,
        samples=3,
        stages={Stage.SEALED: 2, Stage.RUNNING: 1},
        ends={TerminationReason.FINISHED: 2},
        attempts=3,
        rewards=(1.0, None, 0.5),
        outcome=TaskOutcome.MERGED,
        submitted_at=1.0,
    )
    (_, line) = printed(task_table([view])).splitlines()

    assert line.split() == ["t", "merged", "2", "finished,", "1", "running", "1", "-", "0.5", "0.75"]


def test_equal_troubles_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Ten tasks that lack the same have one thing to mend."""
    told = "harness pi has tools: start the runner with --trust-local"
    reasons = {"run.a": told, "run.b": "no engine", "run.c": told, "run.d": told}
    tell_troubles(
        TaskView(
            cursor=1,
            task_id=task_id,
            run_id="run",
            name=None,
            harness="pi",
            purpose=Purpose.TRAIN,
            samples=1,
            stages={},
            ends={},
            attempts=1,
            outcome=TaskOutcome.FAILED,
            reason=reason,
            submitted_at=1.0,
        )
        for task_id, reason in reasons.items()
    )

    assert capsys.readouterr().err.splitlines() == [
        f"evener: task run.a and 2 more failed: {told}",
        "evener: task run.b failed: no engine",
    ]
