"""Sessions on a terminal."""

from io import StringIO
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from tests.builders import row
from tests.unit.proto.golden_events import TRAJECTORY

from evener.cli.progress import table, tell_troubles
from evener.cli.showing import conversations, heading, tokens
from evener.client.views import SessionView, TaskView
from evener.proto.arrays import pack_float32, pack_int32, pack_uint8
from evener.proto.ends import End
from evener.proto.spec import Purpose
from evener.proto.state import Stage
from evener.proto.tasks import TaskOutcome
from evener.proto.trajectories import Row


def printed(shown: Any) -> str:
    out = StringIO()
    Console(file=out, width=160).print(shown)
    return out.getvalue()


def a_row(**given: Any) -> Row:
    """Two given tokens, then three sampled: sure, unsure and trained, and without a logprob."""
    fields: dict[str, Any] = {name: getattr(row(), name) for name in Row.__struct_fields__}
    arrays = {
        "ids": pack_int32([1, 2, 3, 4, 5]),
        "mask": pack_uint8([0, 0, 1, 1, 0]),
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
    shown = printed(conversations(SessionView(trajectory=TRAJECTORY, messages=(messages,))))

    assert "row 0: main, 4 tokens, 2 trained, fed" in shown
    assert "Look\n[image]" in shown
    assert '→ write({"path": "a"})' in shown
    assert "[bold]ok[/bold]" in shown


def test_heading_accounts_for_every_token() -> None:
    """What was sampled, what is in rows, and why the rest is not; doubts are not hidden."""
    shown = printed(heading(TRAJECTORY))

    assert "5 sampled, 2 in rows; left out: 3 side_call" in shown
    assert "call c1: record damaged" in shown


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
        ends={End.FINISHED: 2},
        attempts=3,
        rewards=(1.0, None, 0.5),
        outcome=TaskOutcome.MERGED,
        submitted_at=1.0,
    )
    (_, line) = printed(table([view])).splitlines()

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
