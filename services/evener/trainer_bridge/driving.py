"""One update of all engines of a policy: scored, loaded, proven; or all of them brought back."""

import asyncio
import time
from collections.abc import Awaitable, Sequence
from typing import Final, TypeVar

import structlog
from msgspec import Struct

from evener.client.views import EngineUpdate
from evener.engines.port import EngineError, EngineUnreachable, Scores, WeightControl
from evener.proto.errors import EvenerError
from evener.proto.fleet import Canary, PolicyStaged
from evener.trainer_bridge.canary import prove, same
from evener.trainer_bridge.fleet import Joined
from evener.trainer_bridge.updating import Held, has, held, load, own_canary, scores

BACK_TOLERANCE: Final = 1e-3
"""By how much an engine that was brought back may score otherwise than before."""

Got = TypeVar("Got")

log = structlog.get_logger()


class Step(Struct, frozen=True, kw_only=True, eq=False):
    """An engine that can be reached, with the version before."""

    engine: Joined
    control: WeightControl
    before: Held
    scores: list[Scores]
    """Of the canary."""


class Prepared(Struct, frozen=True, kw_only=True, eq=False):
    """Engines that have the version before, and what they think of the canary."""

    canary: Canary | None
    """None: no engine could be asked for one."""
    steps: list[Step]
    absent: dict[str, str]
    """Engine id to why it could not be reached. Such an engine is loaded when it comes back."""


class Driven(Struct, frozen=True, kw_only=True, eq=False):
    """How an update went."""

    updates: tuple[EngineUpdate, ...] = ()
    absent: dict[str, str] = {}
    wrong: EvenerError | None = None
    """What an engine showed; then all were brought back."""
    lost: tuple[Joined, ...] = ()
    """Engines that could not be brought back: nobody knows their weights."""


async def prepare(engines: Sequence[tuple[Joined, WeightControl, Held]], absent: dict[str, str], canary: Canary | None) -> Prepared:
    """See that every engine has the version before, and score the canary. Raises EngineError for one that refuses.

    `absent`: engines that did not answer before; others are added.
    """
    absent = dict(absent)
    reached = [engine for engine in engines if await _reached(engine[0], _settle(engine[1], engine[2]), absent) is not None]
    if canary is None and reached:
        canary = await own_canary([control for _, control, _ in reached])
    if canary is None:
        return Prepared(canary=None, steps=[], absent=absent)
    told = await asyncio.gather(*(_reached(engine, scores(control, canary), absent) for engine, control, _ in reached))
    steps = [
        Step(engine=engine, control=control, before=before, scores=scored)
        for (engine, control, before), scored in zip(reached, told, strict=True)
        if scored is not None
    ]
    return Prepared(canary=canary, steps=steps, absent=absent)


async def drive(prepared: Prepared, staged: PolicyStaged, *, differs: bool, tied: bool) -> Driven:
    """Load the staged version into all engines at once. If one shows it wrong, bring all back. `differs`: from the version before."""
    canary = prepared.canary
    if canary is None:
        return Driven(absent=prepared.absent)
    outcomes = await asyncio.gather(*(_update(step, staged, canary, differs=differs, tied=tied) for step in prepared.steps))
    wrong = next((each for each in outcomes if isinstance(each, EvenerError) and not isinstance(each, EngineUnreachable)), None)
    if wrong is not None:
        back = await asyncio.gather(*(_brought_back(step, canary) for step in prepared.steps))
        return Driven(wrong=wrong, lost=tuple(step.engine for step, good in zip(prepared.steps, back, strict=True) if not good))
    pairs = list(zip(prepared.steps, outcomes, strict=True))
    failed = {step.engine.engine_id: str(each.args[0]) for step, each in pairs if isinstance(each, EvenerError)}
    return Driven(updates=tuple(each for _, each in pairs if isinstance(each, EngineUpdate)), absent=prepared.absent | failed)


async def _settle(control: WeightControl, before: Held) -> bool:
    if not await has(control, before):
        await load(control, before)
    return True


async def _reached(engine: Joined, asking: Awaitable[Got], absent: dict[str, str]) -> Got | None:
    """Return the answer. None: the engine gave none, and is noted as absent."""
    try:
        return await asking
    except EngineUnreachable as unreachable:
        absent[engine.engine_id] = str(unreachable.args[0])
        return None


async def _update(step: Step, staged: PolicyStaged, canary: Canary, *, differs: bool, tied: bool) -> EngineUpdate | EvenerError:
    """Load and prove a version in one engine; return what it showed, or what is wrong."""
    began, name = time.monotonic(), step.engine.engine_id
    try:
        paused = await load(step.control, held(staged))
        after = await scores(step.control, canary)
        proof = prove(name, canary, step.scores, after, version=staged.version, must_change=differs, tied=tied)
    except EvenerError as failed:
        return failed
    return EngineUpdate(engine_id=name, seconds=time.monotonic() - began, paused_seconds=paused, change=proof.change, gap=proof.gap)


async def _brought_back(step: Step, canary: Canary) -> bool:
    """Load the version before; return whether the engine scores as it did."""
    try:
        await load(step.control, step.before)
        return same(step.scores, await scores(step.control, canary), BACK_TOLERANCE)
    except EngineError as failed:
        log.error("engine_not_brought_back", engine_id=step.engine.engine_id, version=step.before.version, error=str(failed))
        return False
