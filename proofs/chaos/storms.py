"""Storms by name: a chain of kills at named points, or kills at random moments. Each ends with an audit."""

import asyncio
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct
from proofs.chaos.storm import Storm, storm
from tests.support.log import Log

from evener.proto.sessions import CallClosed, CallFailed, SessionStarted

CHAINS: Final[dict[str, Sequence[str]]] = {
    "call": ("kill@gateway.committed#3", "kill@bus.committing.gateway#3"),
    "end": ("kill@gateway.sealed", "kill@reconstructor.sealed_read", "kill@reconstructor.built#2", "kill@evaluator.graded"),
    "group": ("kill@bridge.in_transaction#2", "kill@bus.committing.bridge", "kill@bridge.merged", "kill@scheduler.task_ended"),
    "start": ("kill@scheduler.submitted#2", "kill@scheduler.dispatched", "kill@runner.started#2", "kill@bus.committing.scheduler#4"),
    "recovery": ("kill@gateway.committed#4", "kill@gateway.recovering", "kill@gateway.taken_over#2"),
}
"""What strikes one start of `evener up` after the other, each in what recovers from the one before."""
MAX_SECONDS: Final = 4.0
"""The longest time from readiness, or from the start, to a kill at random."""
STARTING: Final = 1
"""The index of the one kill in three that may come before `evener up` is ready."""


class Outcome(Struct, frozen=True, kw_only=True):
    """A finished storm: its strikes, and the audit of its log."""

    name: str
    kills: int
    starts: int
    """The number of times that harnesses were started."""
    calls: int
    """The number of closed calls."""
    failed_calls: int
    built_again: int
    scored_again: int
    answers: int
    """The number of answers that harnesses received."""
    faults: tuple[str, ...]
    """The faults that the audit found."""
    seconds: float


async def chain(folder: Path, name: str) -> Outcome:
    """Strike at the points of a chain."""
    began = time.monotonic()
    async with storm(folder) as chaos:
        await chaos.survive(*CHAINS[name])
        return await _outcome(chaos, name, len(CHAINS[name]), began)


async def at_random(folder: Path, seed: int, kills: int) -> Outcome:
    """Kill at any moment."""
    began = time.monotonic()
    drawn = random.Random(seed)  # noqa: S311 - repeatable on purpose
    async with storm(folder) as chaos:
        submitting = asyncio.create_task(chaos.work.submit())
        for number in range(kills):
            await chaos.up.start()
            if number % 3 != STARTING:
                await chaos.up.ready()
            await asyncio.sleep(drawn.uniform(0, MAX_SECONDS))
            await chaos.up.kill()
        await chaos.up.start()
        await submitting
        await chaos.ended()
        await chaos.up.stop()
        return await _outcome(chaos, f"seed {seed}", kills, began)


async def _outcome(chaos: Storm, name: str, kills: int, began: float) -> Outcome:
    log = await chaos.log()
    return Outcome(
        name=name,
        kills=kills,
        starts=_count(log, SessionStarted),
        calls=_count(log, CallClosed),
        failed_calls=_count(log, CallFailed),
        built_again=sum(len(events) - 1 for events in log.built.values()),
        scored_again=sum(len(events) - 1 for events in log.scored.values()),
        answers=sum(one.kind == "answered" for one in chaos.work.noted()),
        faults=tuple(await chaos.audit()),
        seconds=time.monotonic() - began,
    )


def _count(log: Log, kind: type) -> int:
    return sum(len(log.of_kind(name, kind)) for name in log.sessions)
