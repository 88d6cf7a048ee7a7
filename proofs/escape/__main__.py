"""`python -m proofs.escape [--only REGEX]`: all attempts on `docker` and `bubblewrap`; figures to outputs/escape.json.

It starts a Docker daemon of its own (`scripts/dockerd.py`), which needs root.
"""

import argparse
import asyncio
import re
import sys
import tempfile
from pathlib import Path

from proofs.conformance.code import digest
from proofs.escape.attempts import ATTEMPTS
from proofs.escape.suite import Tried, attempted
from proofs.escape.world import open_world
from proofs.figures import Row, report
from scripts.dockerd import daemon


async def run_attempts(only: str, docker_host: str, folder: Path) -> list[Tried]:
    """Make the attempts whose names are asked for, one after the other."""
    async with open_world(folder, docker_host) as world:
        return [await attempted(each, kind, world) for each in ATTEMPTS if re.search(only, each.name) for kind in each.kinds]


def main() -> int:
    """Return the exit status: 1 if an attempt succeeded, or none did where its defence was off."""
    parser = argparse.ArgumentParser(prog="python -m proofs.escape")
    parser.add_argument("--only", default="", help="a regular expression found in an attempt's name")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, daemon() as (_, address):
        tried = asyncio.run(run_attempts(options.only, address, Path(folder)))
    succeeded = [one for one in tried if one.succeeded]
    idle = [one for one in tried if one.without_defence is False]
    report(
        "escape",
        "Attempts to get out of a sandbox",
        [_row(one) for one in tried],
        attempts=len(tried),
        succeeded=len(succeeded),
        succeeded_without_defence=sum(one.without_defence is True for one in tried),
        skipped={f"{one.backend}: {one.name}": one.skipped for one in tried if one.skipped},
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
