"""What programs in a sandbox try, each with its defence and without: `make escape` as tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from proofs.escape.attempt import Attempt
from proofs.escape.attempts import ATTEMPTS
from proofs.escape.suite import BUBBLEWRAP, DOCKER, attempted
from proofs.escape.world import World, open_world

ON_BUBBLEWRAP = [attempt for attempt in ATTEMPTS if BUBBLEWRAP in attempt.kinds]
ON_DOCKER = [attempt for attempt in ATTEMPTS if DOCKER in attempt.kinds]


@pytest.fixture
async def world(tmp_path: Path, docker_host: str) -> AsyncIterator[World]:
    for above in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        above.chmod(0o755)  # or its own mode would keep programs out
    async with open_world(tmp_path / "world", docker_host) as world:
        yield world


async def prevented(attempt: Attempt, kind: str, world: World) -> None:
    tried = await attempted(attempt, kind, world)

    assert not tried.succeeded
    assert tried.without_defence or tried.skipped, tried.said_without


@pytest.mark.docker
@pytest.mark.parametrize("attempt", ON_BUBBLEWRAP, ids=lambda attempt: attempt.name)
async def test_bubblewrap_prevents(attempt: Attempt, world: World) -> None:
    """The daemon is there to be reached."""
    await prevented(attempt, BUBBLEWRAP, world)


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.parametrize("attempt", ON_DOCKER, ids=lambda attempt: attempt.name)
async def test_docker_prevents(attempt: Attempt, world: World) -> None:
    await prevented(attempt, DOCKER, world)
