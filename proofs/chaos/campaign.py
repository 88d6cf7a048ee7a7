"""A cluster under fire: work is kept open while strikes fall, until each kind has hit often enough; then the audit."""

import asyncio
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct
from proofs.chaos.cluster import Cluster, cluster
from proofs.chaos.hits import hits
from proofs.chaos.strikes import Strike, Struck
from proofs.chaos.work import COMPARED, TESTED, Wanted, script

from evener.audit.findings import AuditReport, Breach, Invariant
from evener.bus.port import BusError
from evener.bus.read_only import open_reader

SLOW_TOKEN_MS: Final = 600.0
"""A slow call samples some 35 tokens: 20 s and more. A session has one: others would die with their runners again and again."""
SAMPLES: Final = 3
OPEN_TASKS: Final = 8
MAX_STRIKES: Final = 3
"""The number of strikes for each hit that is wanted, after which a kind is given up."""
SPARE_STRIKES: Final = 10
"""The number of strikes that a kind has beyond that, whatever is wanted."""
POLL_SECONDS: Final = 1.0
JUDGE_SECONDS: Final = 10.0
ONE_AFTER_ANOTHER_SECONDS: Final = 0.5
LOST: Final = re.compile(r"\b0 (ends|times|seals)|never|no committed call")
DOUBLED: Final = re.compile(r"\b[2-9]\d* (ends|times|seals)")


class CampaignResult(Struct, frozen=True, kw_only=True):
    """A finished campaign: its strikes, and the audit of its log."""

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
    had: Mapping[str, int] = {},
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

    A kind that hardly ever hits is given up after three times as many strikes, and Ctrl-C gives all up. `had`: hits of earlier
    campaigns, which count.
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
        volley = Volley(struck, kinds, {kind: wanted_hits - had.get(kind, 0) for kind in kinds}, drawn)
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, volley.end)
        await volley.strike(at_once)
        enough.set()
        await feeding
        await struck.ended(delivered=False)
        await volley.judge()
        found = await struck.audit()
        log = await struck.log()
        codes = await struck.stop()
        return CampaignResult(
            sessions=found.sessions,
            struck=dict(Counter(strike.kind for strike in volley.strikes)),
            faults={kind: volley.met[kind] for kind in kinds},
            lost=_count(found, LOST),
            doubled=_count(found, DOUBLED),
            ours_graded=sum(breach.invariant is Invariant.OURS for breach in found.breaches),
            breaches=tuple(map(str, found.breaches)),
            exit_codes=codes,
            ends={member.name: member.ends for member in struck.members if member.ends},
            attempts=sum(type(read.event).__name__ == "SessionStarted" for reads in log.sessions.values() for read in reads),
            seconds=time.monotonic() - began,
        )


class Volley:
    """The strikes of a campaign: strikes at one target follow each other, strikes at different targets overlap."""

    def __init__(self, struck: Cluster, kinds: Mapping[str, Struck], wanted: Mapping[str, int], drawn: random.Random) -> None:
        """`wanted`: how often each kind is to hit."""
        self.strikes: list[Strike] = []
        self._hits = set[Strike]()
        """The hits among the strikes that were judged."""
        self._struck = struck
        self._kinds = kinds
        self._wanted = wanted
        self._drawn = drawn
        self._judged = 0
        """The number of strikes that were judged."""
        self._ended = False

    @property
    def met(self) -> Counter[str]:
        """Hits by kind."""
        return Counter(strike.kind for strike in self._hits)

    async def strike(self, at_once: int) -> None:
        """Strike until each kind has hit often enough, or was given up."""
        room = asyncio.Semaphore(at_once)
        lanes: dict[str, list[str]] = {}
        for kind in self._kinds:
            lanes.setdefault(kind.rpartition(" ")[2], []).append(kind)
        async with asyncio.TaskGroup() as group:
            judging = group.create_task(self._judge_often())
            await asyncio.wait([group.create_task(self._strike(lane, room)) for lane in lanes.values()])
            judging.cancel()

    def end(self) -> None:
        """Strike no more."""
        self._ended = True

    async def judge(self) -> None:
        """Look which strikes hit, in a thread: links and the engine go on."""
        judged = len(self.strikes)
        unseen = set(self.strikes[:judged]) - self._hits
        self._hits |= await asyncio.to_thread(asyncio.run, _hits(self._struck, unseen))
        self._judged = judged
        met = self.met
        fewest = min(self._kinds, key=lambda kind: met[kind])
        _tell(f"{judged} strikes, {met.total()} hits, fewest of {fewest}: {met[fewest]}")

    async def _strike(self, lane: Sequence[str], room: asyncio.Semaphore) -> None:
        while lacking := [kind for kind in lane if self._lacks(kind, judged=self._judged)]:
            if undecided := [kind for kind in lacking if self._lacks(kind, judged=len(self.strikes))]:
                async with room:
                    await asyncio.sleep(self._drawn.uniform(0, ONE_AFTER_ANOTHER_SECONDS))
                    await self._struck.busy()
                    kind = self._drawn.choice(undecided)
                    strike = await self._kinds[kind](self._struck, self._drawn)
                    self.strikes.append(strike)
                    _tell(f"{kind} {strike.instance_id}")
            await asyncio.sleep(POLL_SECONDS)

    def _lacks(self, kind: str, *, judged: int) -> bool:
        """Return whether a kind has to strike again if those strikes hit that nobody judged yet, but were made before `judged`."""
        struck = Counter(strike.kind for strike in self.strikes)
        hopeful = sum(strike.kind == kind for strike in self.strikes[self._judged : judged])
        if self._ended or struck[kind] >= MAX_STRIKES * self._wanted[kind] + SPARE_STRIKES:
            return False
        return self.met[kind] + hopeful < self._wanted[kind]

    async def _judge_often(self) -> None:
        while True:
            await asyncio.sleep(JUDGE_SECONDS)
            try:
                await self.judge()
            except BusError as away:
                _tell(f"hits are not counted now: {away}")


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
    tested, slow = number % 4 != 1, number % 4 != 3
    return Wanted(
        task_id=f"task-{number}",
        samples=SAMPLES,
        steps=1 if slow else 3,
        slow=slow,
        grader=TESTED if tested else COMPARED,
        grading_seconds=6.0 if tested else 0.0,
        flags=("--stream",) if number % 3 == 0 else (),
    )


async def _hits(struck: Cluster, strikes: Iterable[Strike]) -> set[Strike]:
    async with open_reader(struck.bus) as log:
        return await hits(log, struck.work.noted(), strikes)


def _count(found: AuditReport, pattern: re.Pattern[str]) -> int:
    """Return the number of sessions, tasks and answers of which a breach says such a thing."""
    said: list[Breach] = [breach for breach in found.breaches if pattern.search(breach.what)]
    return len({breach.about for breach in said})


def _tell(line: str) -> None:
    print(line, file=sys.stderr)  # noqa: T201 - for whoever runs it
