"""The quick half of the conformance suite: each test a real CLI in one dialect, its cases in one Evener."""

import shutil
from typing import Final

import pytest
from tests.conformance.cases import CASES
from tests.conformance.setups import SETUPS
from tests.conformance.suite import run_one

from evener.engines.embedded import default_weights
from evener.templates.gguf import load_tokenizer

WITHOUT_NPM: Final = pytest.mark.skipif(shutil.which("npm") is None, reason="NOT TESTED WITH REAL CLIS: npm is missing on this machine")
QUICK: Final = ("linear", "live", "refused", "gateway_lost", "length", "bad_json", "cancelled")
LONG: Final = (*QUICK, "sub_agent", "compaction", "slow")


async def assert_passes(name: str, cases: tuple[str, ...]) -> None:
    """Run a set-up's cases; show what failed in any."""
    runs = await run_one(SETUPS[name], [CASES[case] for case in cases], load_tokenizer(default_weights()))

    assert {run.case: run.note for run in runs if not run.passed} == {}
    assert len(runs) == sum(SETUPS[name].has(case) for case in cases)


@WITHOUT_NPM
@pytest.mark.cli
async def test_codex_conforms() -> None:
    """OpenAI Responses."""
    await assert_passes("codex", QUICK)


@WITHOUT_NPM
@pytest.mark.pi
async def test_pi_conforms() -> None:
    """OpenAI Chat."""
    await assert_passes("pi chat", QUICK)


@WITHOUT_NPM
@pytest.mark.cli
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "codex",
        "claude_code lean",
        "claude_code plain",
        "qwen_code",
        "qwen_code anthropic",
        "gemini_cli",
        *("pi responses", "pi anthropic", "pi google"),
    ],
)
async def test_conforms_in_all_cases(name: str) -> None:
    """Sub-agents, compaction and 20 s of silence, too."""
    await assert_passes(name, LONG)
