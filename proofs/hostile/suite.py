"""Runs inputs one after the other against one Evener, with an ordinary session beside and after them, and notes what came of each."""

import asyncio
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import aiohttp
from msgspec import Struct, structs
from proofs.hostile.books import Books, read_books
from proofs.hostile.input import Input, Kind, Unexpected
from proofs.hostile.running import STOPS, WATCHED, Site, site
from proofs.hostile.starts import removed
from proofs.hostile.stops import BAR_MS, Stop, longest, read_stops

from evener.client.errors import ClientError

CANARY_SECONDS: Final = 20.0
RECOVERY_SECONDS: Final = 150.0
"""How long the suite waits after an input that hangs, so that the next one is judged by itself."""
OVER_SECONDS: Final = 60.0
"""The time that the tasks of inputs which died or hung get at the end of the suite."""
TRIES: Final = 3
"""An input that stops the loop for too long is done again: on a shared machine the shortest of the longest stops is its own."""
HOPELESS_MS: Final = 1000.0
"""A stop so long is no noise, and not measured again."""
CHEAP: Final = frozenset({Kind.CONTROL, Kind.NUMBERS, Kind.NAMES, Kind.TIMES, Kind.ARCHIVES})
CHEAP_CANARIES: Final = 8
"""Among inputs of the cheap kinds, one in this many has an ordinary session after it."""
BASELINE_SECONDS: Final = 3.0
BASELINE_CANARIES: Final = 5
MIB: Final = 1 << 20


class Outcome(Struct, frozen=True, kw_only=True):
    """What came of one input."""

    kind: Kind
    name: str
    review: str
    seconds: float
    """How long it took the first time."""
    died: bool = False
    hung: bool = False
    fault: str = ""
    """What was not as it should be, the ordinary sessions included."""
    stops_ms: tuple[float, ...] = ()
    """The longest stop of the loop each time, without what the machine's other work took."""
    where: str = ""
    """What the loop did then."""
    told_ms: float | None = None
    """The longest stop as the product's own metrics tell it, what the machine's other work took included. None: they do not."""

    @property
    def stop_ms(self) -> float:
        """The stop that is the input's own."""
        return min(self.stops_ms, default=0.0)

    @property
    def right(self) -> bool:
        """Whether all is as it should be."""
        return not (self.died or self.hung or self.fault) and self.stop_ms <= BAR_MS


class Baseline(Struct, frozen=True, kw_only=True):
    """The longest stops without any input: with and without what the machine's other work took, in milliseconds."""

    idle_ms: float
    idle_wall_ms: float
    canary_ms: float
    canary_wall_ms: float
    canary_seconds: float
    """The median session."""


class Report(Struct, frozen=True, kw_only=True):
    """A whole run."""

    outcomes: tuple[Outcome, ...]
    baseline: Baseline
    books: Books | None
    """None: the log could not be read."""
    ending: tuple[str, ...]
    """What was wrong when it was stopped, started again, and stopped."""
    rss_mb: float
    peak_mb: float
    seconds: float

    @property
    def right(self) -> bool:
        """Whether all is as it should be."""
        return all(one.right for one in self.outcomes) and not self.ending and self.books is not None and not self.books.faults


async def run_all(
    inputs: Sequence[Input], *, program: Sequence[str] = (WATCHED, STOPS), timed: bool = True, patience: float = 1.0
) -> Report:
    """Run all of them. `timed`: stops are measured, and judged. `patience`: all limits of time are as many times longer."""
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="evener-hostile-"))
    try:
        async with site(folder, program=program) as at:
            at.patience = patience
            await at.start()
            await at.canary(2 * CANARY_SECONDS)
            baseline = (
                await _baseline(at) if timed else Baseline(idle_ms=0, idle_wall_ms=0, canary_ms=0, canary_wall_ms=0, canary_seconds=0)
            )
            outcomes = []
            for number, each in enumerate(inputs):
                outcomes.append(await _judged(at, each, after=each.kind not in CHEAP or number % CHEAP_CANARIES == 0, timed=timed))
                _tell(outcomes[-1], timed=timed)
            rss, peak = memory(at.up.pid)
            ending = await _over(at) + await _ended(at)
            books = await _books(at, ending)
    finally:
        await removed(folder)
    return Report(
        outcomes=tuple(outcomes),
        baseline=baseline,
        books=books,
        ending=tuple(ending),
        rss_mb=rss,
        peak_mb=peak,
        seconds=time.monotonic() - began,
    )


def memory(pid: int) -> tuple[float, float]:
    """Return what a process holds now, and held at most, in MiB. (0, 0): it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0, 0.0
    found = dict(re.findall(r"^Vm(RSS|HWM):\s+(\d+) kB", status, re.MULTILINE))
    return int(found.get("RSS", 0)) / 1024, int(found.get("HWM", 0)) / 1024


async def _baseline(at: Site) -> Baseline:
    began = time.monotonic()
    await asyncio.sleep(BASELINE_SECONDS)
    idle = longest(read_stops(at.stops, began, time.monotonic()))
    seconds, worst = [], []
    for _ in range(BASELINE_CANARIES):
        began = time.monotonic()
        await at.canary(CANARY_SECONDS)
        seconds.append(time.monotonic() - began)
        worst.append(longest(read_stops(at.stops, began, time.monotonic())))
    canary = longest([stop for stop in worst if stop is not None])
    return Baseline(
        idle_ms=_own(idle),
        idle_wall_ms=0.0 if idle is None else idle.ms,
        canary_ms=_own(canary),
        canary_wall_ms=0.0 if canary is None else canary.ms,
        canary_seconds=sorted(seconds)[len(seconds) // 2],
    )


def _own(stop: Stop | None) -> float:
    return 0.0 if stop is None else stop.own_ms


async def _judged(at: Site, each: Input, *, after: bool, timed: bool) -> Outcome:
    """Do it, again where it stopped the loop for too long, and return what came of it."""
    stops: tuple[float, ...] = ()
    outcome = await _once(at, each, after=after)
    while timed and each.timed:
        stops = (*stops, *outcome.stops_ms)
        if outcome.died or outcome.hung or outcome.fault or len(stops) == TRIES or not BAR_MS < outcome.stop_ms < HOPELESS_MS:
            break
        again = await _once(at, each, after=after)
        best = again if again.stop_ms < outcome.stop_ms else outcome
        outcome = structs.replace(again, seconds=outcome.seconds, where=best.where, told_ms=best.told_ms)
    return structs.replace(outcome, stops_ms=stops, where=outcome.where if stops and min(stops) > BAR_MS else "")


async def _once(at: Site, each: Input, *, after: bool) -> Outcome:
    """Do it once, with an ordinary session beside it and after it."""
    await at.told_stop_ms()
    began = time.monotonic()
    faults: list[str] = []
    beside = None if each.kind in CHEAP else asyncio.create_task(at.canary(each.seconds + CANARY_SECONDS))
    hung = await _acted(at, each, faults)
    seconds = time.monotonic() - began
    hung |= not await _lives_on(at, faults, beside=beside, after=after or hung or bool(faults))
    died = at.up.ended is not None
    stop = longest(read_stops(at.stops, began, time.monotonic()))
    told = await at.told_stop_ms()
    if died:
        faults.append(f"it ended with {at.up.ended}: {at.up.log[-600:]}")
        await _revive(at)
    return Outcome(
        kind=each.kind,
        name=each.name,
        review=each.review,
        seconds=seconds,
        died=died,
        hung=hung,
        fault="; ".join(faults),
        stops_ms=(_own(stop),),
        where="" if stop is None else stop.where,
        told_ms=told,
    )


async def _acted(at: Site, each: Input, faults: list[str]) -> bool:
    """Do it; note what was not right, and return whether it hung."""
    try:
        async with asyncio.timeout(at.patience * each.seconds):
            await each.act(at)
    except TimeoutError:
        faults.append(f"not over after {at.patience * each.seconds:g} s")
        return True
    except Exception as cause:  # noqa: BLE001 - whatever an input meets is what came of it
        faults.append(_said(cause))
    return False


async def _lives_on(at: Site, faults: list[str], *, beside: "asyncio.Task[None] | None", after: bool) -> bool:
    """Wait until it is healthy and ordinary sessions end as they should; note what was not right, and return whether they ended."""
    ended = True
    try:
        async with asyncio.timeout(at.patience * RECOVERY_SECONDS):
            await at.healthy(RECOVERY_SECONDS)
            if after:
                await at.canary(CANARY_SECONDS)
            if beside is not None:
                await beside
    except (Unexpected, TimeoutError, ClientError, aiohttp.ClientError, OSError) as cause:
        faults.append(f"afterwards: {_said(cause)}")
        ended = at.up.ended is not None or not ("had not ended" in str(cause) or isinstance(cause, TimeoutError))
    if beside is not None:
        beside.cancel()
        await asyncio.gather(beside, return_exceptions=True)
    return ended


def _said(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) if isinstance(error, Unexpected | AssertionError) else repr(error)


async def _revive(at: Site) -> None:
    """Start it again; where it does not start over what its sandboxes left, those are put aside."""
    try:
        await at.start()
    except (AssertionError, TimeoutError):
        with suppress(ProcessLookupError):
            await at.up.kill()
        (at.state / "sandboxes").rename(at.folder / at.name("aside"))
        await at.start()


async def _over(at: Site) -> list[str]:
    """Wait until every task that was accepted has ended; return those that have not."""
    left = list(at.tasks)
    with suppress(TimeoutError, ClientError, aiohttp.ClientError, OSError):
        async with asyncio.timeout(at.patience * OVER_SECONDS):
            while left:
                await at.ended(left[-1])
                left.pop()
    return [f"task {task_id} does not end" for task_id in left]


async def _ended(at: Site) -> list[str]:
    """Stop it, start it over all that the inputs left behind, and stop it; return what was wrong."""
    faults = []
    for doing in ("stopped", "stopped after it was started again"):
        try:
            await at.up.stop()
        except AssertionError as cause:
            faults.append(f"{doing}: {str(cause)[-600:]}")
            await at.up.aclose()
        if doing == "stopped":
            try:
                await at.start()
                await at.canary(CANARY_SECONDS)
            except (AssertionError, TimeoutError, Unexpected) as cause:
                faults.append(f"started again over what was left: {str(cause)[-600:]}")
                await at.up.aclose()
                return faults
    return faults


async def _books(at: Site, ending: list[str]) -> Books | None:
    try:
        return await read_books(at)
    except Exception as cause:  # noqa: BLE001 - whatever makes the log unreadable is a finding
        ending.append(f"the books cannot be read: {cause!r}")
        return None


def _tell(outcome: Outcome, *, timed: bool) -> None:
    stop = f", stopped {outcome.stop_ms:.0f} ms in {outcome.where or '?'}" if timed and outcome.stop_ms > BAR_MS else ""
    said = "right" if outcome.right else f"WRONG{stop}{' DIED' * outcome.died}{' HUNG' * outcome.hung} {outcome.fault[:300]}"
    print(f"{outcome.kind}: {outcome.name}: {outcome.seconds:.1f} s: {said}", file=sys.stderr, flush=True)  # noqa: T201 - for whoever runs it
