"""The real CLIs through a whole Evener: `evener harness check`."""

from pathlib import Path

import msgspec
import pytest
from tests.support.commands import run

from evener.cli.harness_check import CHECK_INSTRUCTION, run_check, run_request_of, script
from evener.cli.harness_figures import Figures
from evener.engines.scripted import Rule, Script, ToolCall
from evener.engines.scripted.script import Step
from evener.harnesses.registry import harness
from evener.proto.reasons import ExclusionReason, TerminationReason
from evener.proto.spec import HarnessSpec, Streaming

BY_NPM = pytest.mark.usefixtures("npm")

AGENT = {"description": "look", "prompt": "Look around.", "subagent_type": "general-purpose"}
PAUSE = ToolCall(name="exec_command", arguments={"cmd": "sleep 5", "yield_time_ms": 10_000})
"""Codex ends its sub-agents with itself."""


async def checked(folder: Path, name: str, said: Script | None = None, **options: str) -> Figures:
    probe = harness(name).probe
    assert probe is not None
    run_request = run_request_of(HarnessSpec(name=name, options=options), Streaming.BUFFERED)
    return await run_check(said or script(probe), run_request, ("--trust-local",), folder / "state")


def calls(*made: ToolCall) -> Script:
    """Say one call after the other, then that it is done; say something else in other conversations."""
    steps = (*(Step(tool_calls=(call,)) for call in made), Step(say="Done."))
    return Script(rules=(Rule(match=CHECK_INSTRUCTION, tail=0, steps=steps),), default=Step(say="Seen."))


def assert_linear(figures: Figures) -> None:
    """Five answers in one row: all tokens delivered, and fed as they are."""
    assert figures.trouble is None
    assert (figures.exit_code, figures.termination_reason, figures.written) == (0, TerminationReason.FINISHED, True)
    assert (figures.calls, figures.rows, figures.roots, figures.fed) == (5, 1, {"first": 1}, 1.0)
    assert figures.delivered == figures.sampled > 0
    assert (figures.side_calls, figures.failed_calls, figures.retries) == (0, 0, 0)


@BY_NPM
@pytest.mark.cli
async def test_codex_works_in_one_row(tmp_path: Path) -> None:
    """OpenAI Responses: items come back verbatim."""
    assert_linear(await checked(tmp_path, "codex"))


@BY_NPM
@pytest.mark.cli
@pytest.mark.slow
@pytest.mark.parametrize("settings", ["lean", "plain", "bare"])
async def test_claude_code_works_in_one_row(tmp_path: Path, settings: str) -> None:
    """Anthropic Messages: as it ships too, while it finds no tool and stops by itself."""
    assert_linear(await checked(tmp_path, "claude_code", settings=settings))


@BY_NPM
@pytest.mark.cli
@pytest.mark.slow
@pytest.mark.parametrize("dialect", ["chat", "anthropic"])
async def test_qwen_code_works_in_one_row(tmp_path: Path, dialect: str) -> None:
    """OpenAI Chat, and Anthropic Messages with cache marks that move."""
    assert_linear(await checked(tmp_path, "qwen_code", dialect=dialect))


@BY_NPM
@pytest.mark.cli
@pytest.mark.slow
async def test_gemini_cli_works_in_one_row(tmp_path: Path) -> None:
    """Google generateContent: thoughts come back without their text."""
    assert_linear(await checked(tmp_path, "gemini_cli"))


@BY_NPM
@pytest.mark.cli
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("claude_code", [ToolCall(name="Agent", arguments=AGENT)]),
        ("codex", [ToolCall(name="multi_agent_v1__spawn_agent", arguments={"message": "Look around."}), PAUSE]),
        ("gemini_cli", [ToolCall(name="invoke_agent", arguments={"agent_name": "generalist", "prompt": "Look around."})]),
        ("qwen_code", [ToolCall(name="agent", arguments=AGENT)]),
    ],
)
async def test_a_sub_agent_has_a_row_of_its_own(tmp_path: Path, name: str, made: list[ToolCall]) -> None:
    """Its work is the policy's, too: all of it is delivered."""
    figures = await checked(tmp_path, name, calls(*made))

    assert (figures.exit_code, figures.termination_reason) == (0, TerminationReason.FINISHED)
    assert (figures.rows, figures.fed, figures.side_calls) == (2, 1.0, 0)
    assert figures.delivered == figures.sampled > 0


@BY_NPM
@pytest.mark.cli
@pytest.mark.slow
async def test_claude_codes_web_search_is_a_side_call(tmp_path: Path) -> None:
    """It asks the model to search: served, and not trained. Lean settings have no such tool."""
    figures = await checked(
        tmp_path, "claude_code", calls(ToolCall(name="WebSearch", arguments={"query": "what is new"})), settings="plain"
    )

    assert (figures.exit_code, figures.rows, figures.side_calls) == (0, 1, 1)
    assert figures.sampled - figures.delivered == figures.excluded[ExclusionReason.SIDE_CALL] > 0


def test_a_harness_that_does_not_work_is_told_in_one_line(tmp_path: Path) -> None:
    """One that stops before its work is done: exit code 1, the figures all the same."""
    words = ("harness", "check", "script", "--option.max_calls", "2", "--json", "--state", str(tmp_path / "state"))
    ended = run(*words)
    figures = msgspec.json.decode(ended.out, type=Figures)

    assert ended.code == 1
    assert ended.errors == "evener: harness script: it did not write all files\n"
    assert (figures.termination_reason, figures.rows, figures.written) == (TerminationReason.FINISHED, 1, False)
