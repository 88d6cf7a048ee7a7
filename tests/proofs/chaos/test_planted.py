"""Tests of the tests: with a defence switched off, the audit finds what goes wrong."""

import asyncio
import re
from pathlib import Path
from typing import Final

from proofs.chaos.storm import PLANTED, TASKS, storm

EXPECTED: Final = {
    "answer before commit": (["kill@gateway.commit#2"], r"I1: \S+ the harness was answered, and no committed call says so"),
    "sessions not recognised": (["kill@scheduler.task_ended"], r"I3: \w+: its group ended [2-9] times"),
    "seals forgotten": (["kill@gateway.sealed", "kill@scheduler.task_ended#2"], r"I8: \S+: it has 2 seals"),
    "outputs before offsets": (["kill@bridge.torn"], r"I3: \w+: its group ended [2-9] times"),
}
"""A fault in the program: where it is killed, and what the audit says."""


async def found(folder: Path, fault: str, strikes: list[str]) -> list[str]:
    """Return what the audit finds after kills of a program with this fault."""
    async with storm(folder, TASKS[1:], program=(PLANTED, fault), partitions=1) as chaos:
        await chaos.survive(*strikes, delivered=False)
        return await chaos.audit()


async def test_audit_notices_planted_faults(tmp_path: Path) -> None:
    """Each defence that is switched off costs what it was there to defend."""
    runs = [found(tmp_path / str(number), fault, strikes) for number, (fault, (strikes, _)) in enumerate(EXPECTED.items())]
    faults = dict(zip(EXPECTED, await asyncio.gather(*runs), strict=True))

    assert {name: faults[name] for name, (_, says) in EXPECTED.items() if not any(re.search(says, one) for one in faults[name])} == {}
