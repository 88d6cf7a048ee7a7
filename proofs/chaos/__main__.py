"""`python -m proofs.chaos`: clusters on Kafka under every fault, then `evener up` killed at every point; figures to outputs/chaos.json."""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct
from proofs.chaos import record
from proofs.chaos.campaign import campaign
from proofs.chaos.plants import planted
from proofs.chaos.storms import CHAINS, Outcome, at_random, chain
from proofs.chaos.strikes import AT_ALL, AT_MEMBERS, AT_THREE, INSIDE, Struck
from proofs.chaos.surroundings import AROUND, AT_LINKS, AT_MISFITS

STORMS_AT_ONCE: Final = 4
KILLS: Final = 5
DISK_BYTES: Final = 128 * 1024 * 1024


class Campaign(Struct, frozen=True, kw_only=True):
    """The strikes of an arm. The fields are those of `campaign`."""

    kinds: dict[str, Struck]
    at_once: int
    broker_count: int = 1
    linked: bool = False
    disk_bytes: int | None = None
    clocks: bool = False


CAMPAIGNS: Final = {
    "members": Campaign(kinds=AT_MEMBERS, at_once=6),
    "inside": Campaign(kinds=INSIDE, at_once=5),
    "all": Campaign(kinds=AT_ALL, at_once=2),
    "brokers": Campaign(kinds=AT_THREE, at_once=1, broker_count=3),
    "links": Campaign(kinds=AT_LINKS, at_once=5, linked=True),
    "around": Campaign(kinds=AROUND, at_once=3, disk_bytes=DISK_BYTES, clocks=True),
    "misfits": Campaign(kinds=AT_MISFITS, at_once=4),
}
"""Arms that strike clusters."""
ARMS: Final = (*CAMPAIGNS, "up", "planted")


class Options(Struct, frozen=True, kw_only=True):
    """What to run."""

    arms: list[str]
    hits: int
    sessions: int
    storms: int
    first: int
    add: bool
    folder: Path | None


async def ups(folder: Path, storms: int, first: int) -> list[Outcome]:
    """Kill `evener up` in all chains, then at random."""
    room = asyncio.Semaphore(STORMS_AT_ONCE)

    async def one(run: Callable[[], Awaitable[Outcome]]) -> Outcome:
        async with room:
            outcome = await run()
        print(f"{outcome.name}: {len(outcome.faults)} faults", file=sys.stderr)  # noqa: T201 - for whoever runs it
        return outcome

    runs = [partial(chain, folder / name, name) for name in CHAINS]
    runs += [partial(at_random, folder / str(seed), seed, KILLS) for seed in range(first, first + storms)]
    return await asyncio.gather(*map(one, runs))


async def main(options: Options) -> int:
    """Return the exit status: 1 if any audit found a breach, or did not find a planted fault."""
    if not options.add:
        record.forget()
    sound = True
    for arm in options.arms:
        with tempfile.TemporaryDirectory(prefix="evener-chaos-") as passing:
            folder = Path(options.folder or passing) / arm
            if arm == "up":
                run = record.add(arm, storms=await ups(folder, options.storms, options.first))
            elif arm == "planted":
                run = record.add(arm, planted=await planted(folder))
            else:
                given = CAMPAIGNS[arm]
                had = record.hits(arm)
                run = record.add(
                    arm,
                    await campaign(
                        folder,
                        given.kinds,
                        wanted_hits=options.hits,
                        had=had,
                        sessions=options.sessions // len(CAMPAIGNS),
                        seed=sum(had.values()),
                        at_once=given.at_once,
                        broker_count=given.broker_count,
                        linked=given.linked,
                        disk_bytes=given.disk_bytes,
                        clocks=given.clocks,
                    ),
                )
        print("\n".join(run.breaches), file=sys.stderr)  # noqa: T201 - for whoever runs it
        sound = sound and run.sound
    return 0 if sound else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m proofs.chaos")
    parser.add_argument("--arms", type=lambda text: text.split(","), default=list(ARMS), help=f"of {', '.join(ARMS)}")
    parser.add_argument("--hits", type=int, default=20, help="of each kind of fault on clusters")
    parser.add_argument("--sessions", type=int, default=400, help="of all clusters together, at least")
    parser.add_argument("--storms", type=int, default=20, help="at random, on `evener up`")
    parser.add_argument("--first", type=int, default=1000, help="the first seed")
    parser.add_argument("--add", action="store_true", help="to what outputs/chaos.json has, of whose arms only the missing hits are made")
    parser.add_argument("--folder", type=Path, help="where the logs of members and brokers are to stay")
    raise SystemExit(asyncio.run(main(Options(**vars(parser.parse_args())))))
