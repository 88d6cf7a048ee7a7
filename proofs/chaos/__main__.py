"""`python -m proofs.chaos`: clusters on Kafka under every fault, then `evener up` killed at every point; figures to outputs/chaos.json."""

import argparse
import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec import structs
from proofs.chaos.campaign import CampaignResult, campaign
from proofs.chaos.plants import planted
from proofs.chaos.storms import CHAINS, Outcome, at_random, chain
from proofs.chaos.strikes import AT_ALL, AT_MEMBERS, AT_THREE, INSIDE
from proofs.chaos.surroundings import AROUND, AT_LINKS, AT_MISFITS
from proofs.figures import report

AT_ONCE: Final = 4
KILLS: Final = 5
DISK_BYTES: Final = 128 * 1024 * 1024
ARMS: Final = ("members", "inside", "all", "brokers", "links", "around", "misfits", "up", "planted")


async def clusters(folder: Path, arms: list[str], hits: int, sessions: int) -> dict[str, CampaignResult]:
    """Run the arms that strike clusters, one after the other."""
    share = sessions // max(1, len([arm for arm in arms if arm not in {"up", "planted"}]))
    runs: dict[str, Callable[[Path], Awaitable[CampaignResult]]] = {
        "members": partial(campaign, kinds=AT_MEMBERS, wanted_hits=hits, sessions=share),
        "inside": partial(campaign, kinds=INSIDE, wanted_hits=hits, sessions=share),
        "all": partial(campaign, kinds=AT_ALL, wanted_hits=hits, sessions=share, at_once=1),
        "brokers": partial(campaign, kinds=AT_THREE, wanted_hits=hits, sessions=share, at_once=1, broker_count=3),
        "links": partial(campaign, kinds=AT_LINKS, wanted_hits=hits, sessions=share, linked=True),
        "around": partial(campaign, kinds=AROUND, wanted_hits=hits, sessions=share, disk_bytes=DISK_BYTES, clocks=True),
        "misfits": partial(campaign, kinds=AT_MISFITS, wanted_hits=hits, sessions=share),
    }
    results = {}
    for arm, run in runs.items():
        if arm in arms:
            results[arm] = await run(folder / arm)
            print(f"{arm}: {results[arm]}", file=sys.stderr)  # noqa: T201 - for whoever runs it
    return results


async def ups(folder: Path, storms: int, first: int) -> list[Outcome]:
    """Kill `evener up` in all chains, then at random."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(run: Callable[[], Awaitable[Outcome]]) -> Outcome:
        async with room:
            outcome = await run()
        print(f"{outcome.name}: {len(outcome.faults)} faults", file=sys.stderr)  # noqa: T201 - for whoever runs it
        return outcome

    runs = [partial(chain, folder / name, name) for name in CHAINS]
    runs += [partial(at_random, folder / str(seed), seed, KILLS) for seed in range(first, first + storms)]
    return await asyncio.gather(*map(one, runs))


async def main(arms: list[str], hits: int, sessions: int, storms: int, first: int) -> int:
    """Return the exit status: 1 if any audit found a breach, or did not find a planted fault."""
    with tempfile.TemporaryDirectory(prefix="evener-chaos-") as folder:
        struck = await clusters(Path(folder), arms, hits, sessions)
        outcomes = await ups(Path(folder) / "up", storms, first) if "up" in arms else []
        caught = await planted(Path(folder) / "planted") if "planted" in arms else {}
    faults: Counter[str] = Counter()
    for result in struck.values():
        faults.update(result.faults)
    breaches = {name: result.breaches for name, result in struck.items() if result.breaches}
    breaches |= {outcome.name: outcome.faults for outcome in outcomes if outcome.faults}
    rows: list[dict[str, Any]] = [
        {
            "arm": name,
            "sessions": result.sessions,
            "attempts": result.attempts,
            "strikes": sum(result.struck.values()),
            "hits": sum(result.faults.values()),
            "breaches": len(result.breaches),
            "seconds": result.seconds,
        }
        for name, result in struck.items()
    ]
    rows += [{**structs.asdict(outcome), "arm": "up", "faults": None, "breaches": len(outcome.faults)} for outcome in outcomes]
    report(
        "chaos",
        "Faults, and what the audit found",
        rows,
        sessions=sum(result.sessions for result in struck.values()),
        faults=dict(faults),
        lost=sum(result.lost for result in struck.values()),
        doubled=sum(result.doubled for result in struck.values()),
        ours_graded=sum(result.ours_graded for result in struck.values()),
        planted=caught,
        breaches=breaches,
        ends={name: result.ends for name, result in struck.items() if result.ends},
    )
    return 1 if breaches or not all(caught.values()) else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m proofs.chaos")
    parser.add_argument("--arms", default=",".join(ARMS), help=f"of {', '.join(ARMS)}")
    parser.add_argument("--hits", type=int, default=20, help="of each kind of fault on clusters")
    parser.add_argument("--sessions", type=int, default=400, help="of all clusters together, at least")
    parser.add_argument("--storms", type=int, default=20, help="at random, on `evener up`")
    parser.add_argument("--first", type=int, default=1000, help="the first seed")
    options = parser.parse_args()
    raise SystemExit(asyncio.run(main(options.arms.split(","), options.hits, options.sessions, options.storms, options.first)))
