"""A part of the conformance suite: each test a real CLI in one dialect, its cases of one kind in one Evener."""

from typing import Final

import pytest
from proofs.conformance.cases import CASES
from proofs.conformance.setups import SETUPS
from proofs.conformance.suite import run_one
from tests.support.engines import smollm

BY_NPM: Final = pytest.mark.usefixtures("npm")
QUICK: Final = ("linear", "live", "refused", "gateway_lost", "length", "bad_json", "cancelled")
LONG: Final = (*QUICK, "sub_agent", "compaction", "overloaded", "slow", "quiet")


async def assert_passes(name: str, cases: tuple[str, ...], servers: str | None = None) -> None:
    """Run a set-up's cases; show what failed in any."""
    runs = await run_one(SETUPS[name], [CASES[case] for case in cases], smollm(), servers)

    assert {run.case: run.note for run in runs if not run.passed} == {}
    assert len(runs) == sum(SETUPS[name].has(case) for case in cases)


async def test_the_script_harness_conforms() -> None:
    """OpenAI Chat, and the gateway's own 503."""
    await assert_passes("script", ("linear", "refused", "cancelled", "overloaded"))


@BY_NPM
@pytest.mark.cli
async def test_codex_conforms() -> None:
    """OpenAI Responses."""
    await assert_passes("codex", QUICK)


@BY_NPM
@pytest.mark.pi
async def test_pi_conforms() -> None:
    """OpenAI Chat."""
    await assert_passes("pi chat", QUICK)


@BY_NPM
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
    """Sub-agents, compaction, an overload, 20 s of silence and whom it talks to, too."""
    await assert_passes(name, LONG)


@BY_NPM
@pytest.mark.cli
@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("name", ["codex", "claude_code lean", "qwen_code", "gemini_cli", "pi chat"])
async def test_does_not_see_a_gateways_process_killed(name: str, kafka_servers: str) -> None:
    """Six processes on a real broker; each dialect."""
    await assert_passes(name, ("gateway_killed",), kafka_servers)
