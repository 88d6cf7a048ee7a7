"""Tests of the tests: with a defence switched off, the audit finds what goes wrong."""

import asyncio
import re
from pathlib import Path

import pytest
from proofs.chaos.plants import PLANTS, PLANTS_ON_KAFKA


async def test_audit_notices_planted_faults(tmp_path: Path) -> None:
    """Each defence that is switched off breaks the promise that it defends."""
    runs = [run(tmp_path / str(number)) for number, (run, _) in enumerate(PLANTS.values())]
    found = dict(zip(PLANTS, await asyncio.gather(*runs), strict=True))

    assert {name: found[name] for name, (_, says) in PLANTS.items() if not any(re.search(says, one) for one in found[name])} == {}


@pytest.mark.kafka
@pytest.mark.parametrize("name", PLANTS_ON_KAFKA)
async def test_audit_notices_planted_faults_of_clusters(tmp_path: Path, kafka_servers: str, name: str) -> None:
    """Transactional ids that fence nobody, and commits that count without their records."""
    run, says = PLANTS_ON_KAFKA[name]
    found = await run(tmp_path, kafka_servers)
    assert [one for one in found if re.search(says, one)], found
