"""`evener up` killed with SIGKILL and started again: every task ends, every session is delivered once, nothing is made up."""

import asyncio
from collections.abc import Awaitable, Iterable
from pathlib import Path

import pytest
from proofs.chaos.storms import CHAINS, Outcome, at_random, chain


async def all_clean(storms: Iterable[Awaitable[Outcome]]) -> None:
    """Run storms side by side (they mostly wait), and assert that no audit found a fault."""
    outcomes = await asyncio.gather(*storms)
    assert {outcome.name: outcome.faults for outcome in outcomes if outcome.faults} == {}


async def test_every_task_ends_after_kills_inside_the_protocol(tmp_path: Path) -> None:
    """After a commit and before its answer, inside transactions, between seal and build, during a recovery, and then some."""
    await all_clean(chain(tmp_path / name, name) for name in CHAINS)


async def test_every_task_ends_after_kills_at_random_moments(tmp_path: Path) -> None:
    """Wherever it happens to be."""
    await all_clean(at_random(tmp_path / str(seed), seed, kills=3) for seed in (1, 2))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 120, 4))
async def test_every_task_ends_after_many_kills_at_random_moments(tmp_path: Path, first: int) -> None:
    """Twenty storms of five kills each."""
    await all_clean(at_random(tmp_path / str(seed), seed, kills=5) for seed in range(first, first + 4))
