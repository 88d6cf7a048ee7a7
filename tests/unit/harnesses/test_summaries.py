"""Histories that a summary takes the place of: how harnesses ask for it, and how they are told to."""

import re
from pathlib import Path

import msgspec
import pytest

from evener.harnesses.port import LaunchContext
from evener.harnesses.registry import harness


def with_options(**options: str) -> LaunchContext:
    return LaunchContext(
        instruction="Work.", base_url="http://127.0.0.1:1", key="key", model="policy", workdir="/app", home="/x/home", options=options
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("codex", "Another language model started to solve this problem and produced a summary"),
        ("claude_code", "This session is being continued from a previous conversation that ran out of context. It was"),
        ("qwen_code", "<state_snapshot>\n<overall_goal>"),
        ("pi", "The conversation history before this point was compacted into the following summary:"),
        ("hermes", "You are a summarization agent creating a context checkpoint. Treat the conversation turns below"),
        ("hermes", "[CONTEXT COMPACTION — REFERENCE ONLY] Earlier turns were compacted into the summary below."),
        ("openclaw", "<conversation>\n[User]: Work.\n</conversation>\n\nThis is the PREFIX of a turn that was too large to keep."),
        ("openclaw", "The conversation history before this point was compacted into the following summary:\n\n<summary>"),
        ("openhands", "\n<EVENT>\nActionEvent (agent)\n</EVENT>\n\n\nNow summarize the events using the rules above."),
    ],
)
def test_a_summary_and_its_request_are_told_from_other_roots(name: str, said: str) -> None:
    """By a mark that their folder declares: else they would be taken for sub-agents."""
    mark = harness(name).quirks.compacted

    assert mark is not None
    assert re.search(mark, said)
    assert not re.search(mark, "Work.")


@pytest.mark.parametrize(("options", "looks"), [({}, False), ({"context_tokens": "65536"}, True)])
def test_openclaw_looks_at_its_length_within_a_turn_where_it_knows_the_context(options: dict[str, str], looks: bool) -> None:  # noqa: FBT001 - a column of the table
    """All of a task is one turn; its own guess of a context is none."""
    launch = harness("openclaw").launch(with_options(**options), Path("/bundle"))
    config = msgspec.json.decode(launch.files["/home/agent/.openclaw/openclaw.json"])

    assert config["agents"]["defaults"]["compaction"] == {"midTurnPrecheck": {"enabled": looks}}


def test_hermes_waits_for_its_sub_agents() -> None:
    """Nobody is there to hear them later."""
    launch = harness("hermes").launch(with_options(), Path("/bundle"))

    assert any("declare_stateless_channel()" in word for word in launch.argv)
