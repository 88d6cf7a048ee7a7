"""What programs in a sandbox try, each with its defence and without: `make escape` as tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from proofs.escape.access_trials import ACCESS_TRIALS
from proofs.escape.archive_trials import ARCHIVE_TRIALS
from proofs.escape.attempt import Attempt
from proofs.escape.attempts import ATTEMPTS
from proofs.escape.backends import BUBBLEWRAP, DOCKER
from proofs.escape.grading_trials import GRADING_TRIALS
from proofs.escape.process_trials import PROCESS_TRIALS
from proofs.escape.suite import attempted
from proofs.escape.trial import Trial
from proofs.escape.world import World, open_world

ALL: tuple[Attempt | Trial, ...] = (*ATTEMPTS, *ACCESS_TRIALS, *ARCHIVE_TRIALS, *GRADING_TRIALS, *PROCESS_TRIALS)
QUICK = {
    "host's service by loopback",
    "another session's relay",
    "host's loopback by the proxy",
    "a host's file",
    "the daemon's socket",
    "a user namespace, with all rights in it",
    "io_uring",
    "a set-uid program of root's",
    "a fork bomb",
    "another session's key",
    "a link to a host's folder in the archive, and a file through it",
    "a tar bomb: 64 MB in 2 KB",
    "a forged reward.json",
    "a program that the tests run, which writes reward.json",
    "pyproject.toml of a repository",
    "a process that survives, with an empty environment and a session of its own",
}
"""Made in `bubblewrap` with every test run. All others are slow tests, and `make escape` has those that need a network of their own."""


def chosen(kind: str, *, quick: bool) -> list[Attempt | Trial]:
    return [attempt for attempt in ALL if kind in attempt.kinds and (attempt.name in QUICK) is quick]


@pytest.fixture
async def world(tmp_path: Path, docker_host: str) -> AsyncIterator[World]:
    for above in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        above.chmod(0o755)  # or its own mode would keep programs out
    async with open_world(tmp_path / "world", docker_host) as world:
        yield world


async def prevented(attempt: Attempt | Trial, kind: str, world: World) -> None:
    tried = await attempted(attempt, kind, world)

    assert not tried.succeeded
    assert tried.without_defence or tried.skipped, tried.said_without


def test_quick_attempts_are_there() -> None:
    assert {attempt.name for attempt in chosen(BUBBLEWRAP, quick=True)} == QUICK


@pytest.mark.docker
@pytest.mark.parametrize("attempt", chosen(BUBBLEWRAP, quick=True), ids=lambda attempt: attempt.name)
async def test_bubblewrap_prevents(attempt: Attempt | Trial, world: World) -> None:
    """The daemon is there to be reached."""
    await prevented(attempt, BUBBLEWRAP, world)


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.parametrize("attempt", chosen(BUBBLEWRAP, quick=False), ids=lambda attempt: attempt.name)
async def test_bubblewrap_prevents_all(attempt: Attempt | Trial, world: World) -> None:
    await prevented(attempt, BUBBLEWRAP, world)


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.parametrize("attempt", [*chosen(DOCKER, quick=True), *chosen(DOCKER, quick=False)], ids=lambda attempt: attempt.name)
async def test_docker_prevents(attempt: Attempt | Trial, world: World) -> None:
    await prevented(attempt, DOCKER, world)
