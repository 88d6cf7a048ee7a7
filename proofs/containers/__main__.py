"""`python -m proofs.containers [--only A,B] [--arms C,D]`: real harnesses in containers of Docker; figures to outputs/containers.json.

- families: the linear case of the conformance suite with every set-up of every harness, in `docker` and in `local`: the same rows.
- dockerfile: Pi and Codex on a task with a Dockerfile.
- repository: a task in the shape of SWE-bench; one policy solves it, one breaks another test, one rewrites the tests.

It starts a Docker daemon of its own (`scripts/dockerd.py`), which needs root, and installs the harnesses that are missing.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from proofs.conformance.code import digest
from proofs.conformance.setups import SETUPS
from proofs.conformance.sites import Site
from proofs.containers.dockerfile import dockerfile_task, shell_calls
from proofs.containers.families import compared
from proofs.containers.repository import POLICIES, calls_of, repository_task
from proofs.containers.site import Ended, containers, solved
from proofs.figures import Row, report
from scripts.dockerd import daemon

from evener.cli.harness_bundles import cache
from evener.engines.embedded import default_weights
from evener.harnesses.registry import harness
from evener.proto.reasons import TerminationReason
from evener.templates.gguf import load_tokenizer

ARMS: Final = ("families", "dockerfile", "repository")
WITH_DOCKERFILE: Final = ("pi", "codex")
ON_REPOSITORY: Final = ("script", "pi", "codex")


async def prove(harnesses: set[str], arms: Sequence[str], folder: Path, docker_host: str) -> list[Row]:
    """Return a row for each session, or each pair of them."""
    tokenizer = await asyncio.to_thread(load_tokenizer, default_weights())
    rows = []
    async with containers(folder, tokenizer, docker_host) as at:
        of_arm = {
            "families": partial(_families, at, harnesses),
            "dockerfile": partial(_dockerfile, at, harnesses, folder),
            "repository": partial(_repository, at, harnesses, folder, docker_host),
        }
        for arm in arms:
            async for row in of_arm[arm]():
                print(f"{arm}, {row['name']}: {row['wrong'] or 'passed'}", file=sys.stderr)  # noqa: T201 - for whoever runs it
                rows.append(row)
    return rows


async def _families(at: Site, harnesses: set[str]) -> AsyncIterator[Row]:
    for setup in (setup for setup in SETUPS.values() if setup.harness in harnesses):
        both = await compared(at, setup)
        yield _row("families", setup.name, both.wrong, both.calls, both.rows)


async def _dockerfile(at: Site, harnesses: set[str], folder: Path) -> AsyncIterator[Row]:
    for name in harnesses.intersection(WITH_DOCKERFILE):
        await harness(name).install(cache())
        task = await asyncio.to_thread(dockerfile_task, folder / f"plant-{name}")
        yield _ended("dockerfile", name, await solved(at, task, name, shell_calls(name)), {"reward": 1.0})


async def _repository(at: Site, harnesses: set[str], folder: Path, docker_host: str) -> AsyncIterator[Row]:
    task = await asyncio.to_thread(repository_task, folder / "repository", docker_host)
    for name in harnesses.intersection(ON_REPOSITORY):
        await harness(name).install(cache())
        for policy in POLICIES:
            made = await solved(at, task, name, calls_of(name, policy.files))
            yield _ended("repository", f"{name} {policy.name}", made, policy.rewards)


def _ended(arm: str, name: str, ended: Ended, rewards: dict[str, float]) -> Row:
    wrong = [] if ended.rewards == rewards else [f"the rewards are {ended.rewards}, not {rewards}"]
    if ended.end is not TerminationReason.FINISHED or ended.rows != 1:
        wrong.append(f"it ended as {ended.end} with {ended.rows} rows: {ended.detail}")
    return _row(arm, name, wrong, ended.calls, ended.rows)


def _row(arm: str, name: str, wrong: Sequence[str], calls: int, rows: int) -> Row:
    return {"arm": arm, "name": name, "calls": calls, "rows": rows, "wrong": "; ".join(wrong)}


def main() -> int:
    """Return the exit status: 1 if something was not as it should be."""
    parser = argparse.ArgumentParser(prog="python -m proofs.containers")
    parser.add_argument("--only", default="", help="harnesses, with commas between")
    parser.add_argument("--arms", default=",".join(ARMS), help="what is run of them, with commas between (%(default)s)")
    options = parser.parse_args()
    harnesses = {name for name in options.only.split(",") if name} or {setup.harness for setup in SETUPS.values()}
    arms = [arm for arm in options.arms.split(",") if arm] or ARMS
    if unknown := set(arms) - set(ARMS):
        parser.error(f"there are no arms {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory() as folder, daemon() as (_, address):
        rows = asyncio.run(prove(harnesses, arms, Path(folder), address))
    failed = [row for row in rows if row["wrong"]]
    report("containers", "Real harnesses in containers", rows, sessions=len(rows), failed=len(failed), code=digest())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
