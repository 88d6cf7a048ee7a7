"""`python -m proofs.chaos [--storms N] [--first SEED]`: all chains, then N storms at random; figures to outputs/chaos.json."""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import structs
from proofs.chaos.storms import CHAINS, Outcome, at_random, chain
from proofs.figures import report

AT_ONCE: Final = 4
KILLS: Final = 5


async def main(storms: int, first: int) -> int:
    """Return the exit status: 1 if any audit found a fault."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(run: Callable[[], Awaitable[Outcome]]) -> Outcome:
        async with room:
            outcome = await run()
        print(f"{outcome.name}: {len(outcome.faults)} faults", file=sys.stderr)  # noqa: T201 - for whoever runs it
        return outcome

    with tempfile.TemporaryDirectory(prefix="evener-chaos-") as folder:
        at = Path(folder)
        runs = [partial(chain, at / name, name) for name in CHAINS]
        runs += [partial(at_random, at / str(seed), seed, KILLS) for seed in range(first, first + storms)]
        outcomes = await asyncio.gather(*map(one, runs))
    faults = {outcome.name: outcome.faults for outcome in outcomes if outcome.faults}
    rows = [{**structs.asdict(outcome), "faults": len(outcome.faults)} for outcome in outcomes]
    report("chaos", "Kills, and what the audit found", rows, faults=faults)
    return 1 if faults else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m proofs.chaos")
    parser.add_argument("--storms", type=int, default=20)
    parser.add_argument("--first", type=int, default=1000, help="the first seed")
    options = parser.parse_args()
    raise SystemExit(asyncio.run(main(options.storms, options.first)))
