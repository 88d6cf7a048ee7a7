"""Sessions in containers of Docker: `make containers` with the harness that needs no installation."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from proofs.conformance.setups import SETUPS
from proofs.conformance.sites import Site
from proofs.containers.families import compared
from proofs.containers.repository import POLICIES, calls_of, repository_task
from proofs.containers.site import containers, solved

from evener.engines.embedded import default_weights
from evener.templates.gguf import load_tokenizer

pytestmark = pytest.mark.docker


@pytest.fixture
async def at(tmp_path: Path, docker_host: str) -> AsyncIterator[Site]:
    tokenizer = await asyncio.to_thread(load_tokenizer, default_weights())
    async with containers(tmp_path, tokenizer, docker_host) as at:
        yield at


async def test_container_gives_the_same_rows_as_a_plain_process(at: Site) -> None:
    """Seven calls, two tool calls at once, odd spellings; with everything that the conformance suite wants of a linear session."""
    assert (await compared(at, SETUPS["script"])).wrong == ()


async def test_repository_is_solved_by_one_policy_and_not_by_another(at: Site, tmp_path: Path, docker_host: str) -> None:
    """In the shape of SWE-bench: an image with a history. The other one breaks a test that passed."""
    task = await asyncio.to_thread(repository_task, tmp_path / "repository", docker_host)

    for policy in POLICIES[:2]:
        ended = await solved(at, task, "script", calls_of("script", policy.files))
        assert (ended.rewards, ended.rows, ended.calls) == (policy.rewards, 1, 3), policy.name
