"""`python -m proofs.escape [--only REGEX]`: all attempts on `docker` and `bubblewrap`; figures to outputs/escape.json.

It starts a Docker daemon of its own (`scripts/dockerd.py`) in a network of its own, which needs root.
"""

import argparse
import asyncio
import logging
import re
import sys
import tempfile
from pathlib import Path
from typing import Final

import structlog
from proofs.conformance.code import digest
from proofs.escape import far
from proofs.escape.access_trials import ACCESS_TRIALS
from proofs.escape.archive_trials import ARCHIVE_TRIALS
from proofs.escape.attempt import Attempt
from proofs.escape.attempts import ATTEMPTS, FAR_ATTEMPTS
from proofs.escape.backends import BUBBLEWRAP, DOCKER
from proofs.escape.grading_trials import GRADING_TRIALS
from proofs.escape.process_trials import PROCESS_TRIALS
from proofs.escape.suite import Tried, attempted
from proofs.escape.trial import Trial
from proofs.escape.world import World, open_world
from proofs.figures import Row, report
from scripts.dockerd import daemon

ALL: Final[tuple[Attempt | Trial, ...]] = (*ATTEMPTS, *FAR_ATTEMPTS, *ACCESS_TRIALS, *ARCHIVE_TRIALS, *GRADING_TRIALS, *PROCESS_TRIALS)

SKIPPED: Final = {
    DOCKER: {"filling the disk by many files": "it needs XFS with project quotas, which kernels without CONFIG_XFS_QUOTA lack"},
    BUBBLEWRAP: {"filling the disk by many files": "its bytes are limited for each file, not together"},
}
"""Attempts that are not made, and why."""


async def run_attempts(only: str, docker_host: str, folder: Path) -> list[Tried]:
    """Make the attempts whose names are asked for, on both backends at a time."""
    async with open_world(folder, docker_host) as world:
        tried = await asyncio.gather(*(_on(kind, only, world) for kind in (DOCKER, BUBBLEWRAP)))
        return [one for of_kind in tried for one in of_kind]


async def _on(kind: str, only: str, world: World) -> list[Tried]:
    made = []
    for attempt in ALL:
        if kind in attempt.kinds and re.search(only, attempt.name):
            try:
                one = await attempted(attempt, kind, world)
            except Exception as broken:  # noqa: BLE001 - an attempt that breaks shows nothing, and the others go on
                one = Tried(name=attempt.name, backend=kind, succeeded=False, without_defence=False, said_without=repr(broken))
            said = "ESCAPED" if one.succeeded else "real" if one.without_defence else one.skipped or "NOT REAL"
            print(f"{kind}: {attempt.name}: {said}", file=sys.stderr)  # noqa: T201 - for whoever runs it
            made.append(one)
    return made


def main() -> int:
    """Return the exit status: 1 if an attempt succeeded, or none did where its defence was off."""
    parser = argparse.ArgumentParser(prog="python -m proofs.escape")
    parser.add_argument("--only", default="", help="a regular expression found in an attempt's name")
    options = parser.parse_args()
    if not far.is_own():
        far.enter()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with tempfile.TemporaryDirectory() as folder, daemon() as (_, address):
        Path(folder).chmod(0o755)  # or its own mode would keep programs out
        tried = asyncio.run(run_attempts(options.only, address, Path(folder)))
    succeeded = [one for one in tried if one.succeeded]
    idle = [one for one in tried if one.without_defence is False]
    report(
        "escape",
        "Attempts to get out of a sandbox",
        [_row(one) for one in tried],
        attempts=sum(one.made for one in tried),
        succeeded=len(succeeded),
        succeeded_without_defence=sum(one.without_defence is True for one in tried),
        skipped={f"{one.backend}: {one.name}": one.skipped for one in tried if one.skipped}
        | {f"{kind}: {name}": why for kind, skipped in SKIPPED.items() for name, why in skipped.items()},
        no_real_attempt=[f"{one.backend}: {one.name}: {one.said_without}" for one in idle],
        refusals={f"{one.backend}: {one.name}": one.said for one in tried},
        code=digest(),
    )
    return 1 if succeeded or idle else 0


def _row(one: Tried) -> Row:
    return {"backend": one.backend, "attempt": one.name, "succeeded": _word(one.succeeded), "without_defence": _word(one.without_defence)}


def _word(holds: bool | None) -> str:  # noqa: FBT001 - it is what is told
    return "" if holds is None else "yes" if holds else "no"


if __name__ == "__main__":
    sys.exit(main())
