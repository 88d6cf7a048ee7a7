"""A cluster under fire: work is kept open while strikes fall, until each kind has hit often enough; then the audit."""

import asyncio
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct
from proofs.chaos.cluster import Cluster, cluster
from proofs.chaos.hits import hits
from proofs.chaos.strikes import Strike, Struck
from proofs.chaos.work import COMPARED, TESTED, Wanted, script

from evener.audit.findings import AuditReport, Breach, Invariant
from evener.bus.read_only import open_reader

SLOW_TOKEN_MS: Final = 600.0
"""A slow call samples some 35 tokens: 20 s and more."""
SAMPLES: Final = 3
OPEN_TASKS: Final = 10
POLL_SECONDS: Final = 1.0
ONE_AFTER_ANOTHER_SECONDS: Final = 0.5
LOST: Final = re.compile(r"\b0 (ends|times|seals)|never|no committed call")
DOUBLED: Final = re.compile(r"\b[2-9]\d* (ends|times|seals)")


class CampaignResult(Struct, frozen=True, kw_only=True):
    """What a campaign was, and what it left."""

    sessions: int
    struck: dict[str, int]
    faults: dict[str, int]
    """Hits by kind: strikes that met something open."""
    lost: int
    doubled: int
    ours_graded: int
    breaches: tuple[str, ...]
    exit_codes: dict[str, int]
    """Exit codes of the members that did not stop with 0 at the end."""
    ends: dict[str, list[str]]
    """The last words of members that ended by themselves and were started again, by name."""
    attempts: int
    """Starts of harnesses."""
    seconds: float


async def campaign(
    folder: Path,
    kinds: Mapping[str, Struck],
    *,
    wanted_hits: int,
    sessions: int,
    seed: int = 1,
    at_once: int = 3,
    open_tasks: int = OPEN_TASKS,
    broker_count: int = 1,
    linked: bool = False,
    disk_bytes: int | None = None,
    clocks: bool = False,
    slow_token_ms: float = SLOW_TOKEN_MS,
) -> CampaignResult:
    """Strike until each kind has hit so often, and so many sessions were submitted; then wait for all ends and audit.

    `at_once`: strikes at a time. `open_tasks`: tasks that are kept open, of several sessions each. `slow_token_ms`: the time of a token
    in a slow call. The others are those of `cluster`.
    """
    began = time.monotonic()
    drawn = random.Random(seed)  # noqa: S311 - repeatable on purpose
    async with cluster(
        folder, (), says=script(5, slow_token_ms), broker_count=broker_count, linked=linked, disk_bytes=disk_bytes, clocks=clocks
    ) as struck:
        await struck.start()
        enough = asyncio.Event()
        feeding = asyncio.create_task(_feed(struck, sessions, open_tasks, enough))
        strikes: list[Strike] = []
        met = Counter[str]()
        while lacking := [kind for kind in kinds for _ in range(wanted_hits - met[kind])]:
            drawn.shuffle(lacking)
            strikes += await _strike(struck, kinds, lacking, drawn, at_once)
            met = await _hits(struck, strikes)
            _tell(f"{len(strikes)} strikes, hits: {dict(met)}")
        enough.set()
        await feeding
        await struck.ended(delivered=False)
        met = await _hits(struck, strikes)
        found = await struck.audit()
        log = await struck.log()
        codes = await struck.stop()
        return CampaignResult(
            sessions=found.sessions,
            struck=dict(Counter(strike.kind for strike in strikes)),
            faults={kind: met[kind] for kind in kinds},
            lost=_count(found, LOST),
            doubled=_count(found, DOUBLED),
            ours_graded=sum(breach.invariant is Invariant.OURS for breach in found.breaches),
            breaches=tuple(map(str, found.breaches)),
            exit_codes=codes,
            ends={member.name: member.ends for member in struck.members if member.ends},
            attempts=sum(type(read.event).__name__ == "SessionStarted" for reads in log.sessions.values() for read in reads),
            seconds=time.monotonic() - began,
        )


async def _feed(struck: Cluster, sessions: int, wanted_open: int, enough: asyncio.Event) -> None:
    """Keep tasks open until there were enough strikes, and so many sessions."""
    while not enough.is_set() or len(struck.work.wanted) * SAMPLES < sessions:
        views = await struck.work.tasks()
        known = len(struck.work.wanted)
        if views or not known:
            more = wanted_open - known + sum(view.outcome is not None for view in views)
            await struck.work.submit_more([_wanted(known + number) for number in range(more)])
        await asyncio.sleep(POLL_SECONDS)


def _wanted(number: int) -> Wanted:
    """Return a task: slow and quick ones, streamed and whole answers, both kinds of graders."""
    tested = number % 2 == 0
    return Wanted(
        task_id=f"task-{number}",
        samples=SAMPLES,
        steps=1 + number % 3,
        slow=number % 4 != 3,
        grader=TESTED if tested else COMPARED,
        grading_seconds=3.0 if tested else 0.0,
        flags=("--stream",) if number % 3 == 0 else (),
    )


async def _strike(struck: Cluster, kinds: Mapping[str, Struck], wanted: Sequence[str], drawn: random.Random, at_once: int) -> list[Strike]:
    """Strike once for each name, a few at a time, never two members of a service together."""
    room = asyncio.Semaphore(at_once)
    turns: dict[str, asyncio.Lock] = {}

    async def one(kind: str) -> Strike:
        async with turns.setdefault(kind.rpartition(" ")[2], asyncio.Lock()), room:
            await asyncio.sleep(drawn.uniform(0, ONE_AFTER_ANOTHER_SECONDS))
            await struck.busy()
            strike = await kinds[kind](struck, drawn)
            _tell(f"{kind} {strike.instance_id}")
            return strike

    return await asyncio.gather(*map(one, wanted))


async def _hits(struck: Cluster, strikes: Sequence[Strike]) -> Counter[str]:
    async with open_reader(struck.bus) as log:
        return await hits(log, struck.work.noted(), strikes)


def _count(found: AuditReport, pattern: re.Pattern[str]) -> int:
    """Return the number of sessions, tasks and answers of which a breach says such a thing."""
    said: list[Breach] = [breach for breach in found.breaches if pattern.search(breach.what)]
    return len({breach.about for breach in said})


def _tell(line: str) -> None:
    print(line, file=sys.stderr)  # noqa: T201 - for whoever runs it
