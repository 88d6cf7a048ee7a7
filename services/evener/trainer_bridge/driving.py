"""One update of all engines of a policy: scored, loaded, proven; or all of them brought back."""

import asyncio
import time
from collections.abc import Awaitable, Sequence
from typing import TypeVar

import structlog
from msgspec import Struct

from evener.client.views import EngineUpdate
from evener.engines.port import EngineError, EngineUnreachable, Scores, WeightControl
from evener.proto.errors import EvenerError
from evener.proto.fleet import Canary, PolicyStaged
from evener.service.faults import point
from evener.trainer_bridge.canary import UNCHANGED, prove, same
from evener.trainer_bridge.fleet import Joined
from evener.trainer_bridge.updating import EngineHung, Held, held, holds, in_time, load, loadable, own_canary, scores

Got = TypeVar("Got")

log = structlog.get_logger()


class Candidate(Struct, frozen=True, kw_only=True, eq=False):
    """An engine that answers, with the weights that it is to have before an update."""

    engine: Joined
    control: WeightControl
    before: Held | None
    """None: it has others, and cannot be brought back to anything."""


class Step(Struct, frozen=True, kw_only=True, eq=False):
    """An engine that has the version before, and what it thinks of the canary."""

    of: Candidate
    scores: list[Scores]


class Missing:
    """Engines that take no part in an update."""

    def __init__(self, seconds: float) -> None:
        """`seconds`: what an engine may take for anything."""
        self.seconds = seconds
        self.why: dict[str, str] = {}
        """Engine id to why. An engine that could not be reached is loaded when it comes back."""
        self.hung: list[Joined] = []

    async def reached(self, engine: Joined, asking: Awaitable[Got]) -> Got | None:
        """Return the answer. None: the engine gave none, and is noted."""
        try:
            return await in_time(engine.engine_id, self.seconds, asking)
        except EngineUnreachable as unreachable:
            self.note(engine, unreachable)
            return None

    def note(self, engine: Joined, unreachable: EngineUnreachable) -> None:
        """Note an engine that gave no answer."""
        self.why[engine.engine_id] = str(unreachable.args[0])
        if isinstance(unreachable, EngineHung):
            self.hung.append(engine)


class Prepared(Struct, frozen=True, kw_only=True, eq=False):
    """Engines to update."""

    canary: Canary | None
    """None: no engine could be asked for one."""
    steps: list[Step]


class Updated(Struct, frozen=True, kw_only=True, eq=False):
    """An engine that has proven a version."""

    view: EngineUpdate
    scores: list[Scores]


class Driven(Struct, frozen=True, kw_only=True, eq=False):
    """How an update went."""

    updates: tuple[Updated, ...] = ()
    wrong: EvenerError | None = None
    """What an engine showed; then all were brought back."""
    lost: tuple[Joined, ...] = ()
    """Engines that could not be brought back: nobody knows their weights."""


async def prepare(candidates: Sequence[Candidate], missing: Missing, canary: Canary | None) -> Prepared:
    """See that every engine has the version before, and score the canary. Raises EngineError for one that refuses."""
    settled = await asyncio.gather(*(missing.reached(one.engine, _settled(one)) for one in candidates))
    reached = [one for one in settled if one is not None]
    for one in reached:
        canary = canary or await missing.reached(one.engine, own_canary(one.control))
    if canary is None:
        return Prepared(canary=None, steps=[])
    told = await asyncio.gather(*(missing.reached(one.engine, scores(one.control, canary)) for one in reached))
    steps = [Step(of=one, scores=scored) for one, scored in zip(reached, told, strict=True) if scored is not None]
    return Prepared(canary=canary, steps=steps)


async def drive(prepared: Prepared, staged: PolicyStaged, missing: Missing, *, tied: bool) -> Driven:
    """Load the staged version into all engines at once. If one shows it wrong, bring all back."""
    canary = prepared.canary
    if canary is None:
        return Driven()
    outcomes = await asyncio.gather(*(_update(step, staged, canary, missing.seconds, tied=tied) for step in prepared.steps))
    wrong = next((each for each in outcomes if isinstance(each, EvenerError) and not isinstance(each, EngineUnreachable)), None)
    if wrong is not None:
        return Driven(wrong=wrong, lost=await _all_brought_back(prepared.steps, canary, missing.seconds))
    for step, outcome in zip(prepared.steps, outcomes, strict=True):
        if isinstance(outcome, EngineUnreachable):
            missing.note(step.of.engine, outcome)
    return Driven(updates=tuple(each for each in outcomes if isinstance(each, Updated)))


async def _settled(one: Candidate) -> Candidate:
    """Give an engine the version before if it has another, and the folder still holds that."""
    before = one.before
    if before is None or await holds(one.control, before):
        return one
    if await loadable(before):
        await load(one.control, before)
        return one
    if await one.control.paused():
        msg = f"it is paused in the middle of an update, and {before.location} is not what it was: start it again"
        raise EngineUnreachable(msg)
    return Candidate(engine=one.engine, control=one.control, before=None)


async def _update(step: Step, staged: PolicyStaged, canary: Canary, seconds: float, *, tied: bool) -> Updated | EvenerError:
    """Load and prove a version in one engine; return what it showed, or what is wrong."""
    try:
        return await in_time(step.of.engine.engine_id, seconds, _loaded(step, staged, canary, tied=tied))
    except EvenerError as failed:
        return failed


async def _loaded(step: Step, staged: PolicyStaged, canary: Canary, *, tied: bool) -> Updated:
    began, name, control = time.monotonic(), step.of.engine.engine_id, step.of.control
    wanted = held(staged, step.of.engine.joined)
    paused = await load(control, wanted)
    after = await scores(control, canary)
    known = step.of.before.digest if step.of.before is not None else None
    differs = None if known is None else known != staged.digest
    proof = prove(name, canary, step.scores, after, version=staged.version, differs=differs, tied=tied)
    await control.relabel(wanted.proven)
    await point("bridge.engine_proven")
    seconds = time.monotonic() - began
    view = EngineUpdate(engine_id=name, seconds=seconds, paused_seconds=paused, change=proof.change, gap=proof.gap)
    return Updated(view=view, scores=after)


async def _all_brought_back(steps: Sequence[Step], canary: Canary, seconds: float) -> tuple[Joined, ...]:
    """Bring engines back to what they had; return those that cannot be."""
    folders = {step.of.before.location: step.of.before for step in steps if step.of.before is not None}
    there = {location for location, before in folders.items() if await loadable(before)}
    back = await asyncio.gather(*(_brought_back(step, canary, seconds, there) for step in steps))
    return tuple(step.of.engine for step, came in zip(steps, back, strict=True) if not came)


async def _brought_back(step: Step, canary: Canary, seconds: float, there: set[str]) -> bool:
    """Load the version before; return whether the engine scores as it did."""
    name, before = step.of.engine.engine_id, step.of.before
    if before is None:
        return False
    try:
        return await in_time(name, seconds, _scores_as_before(step, before, canary, load_it=before.location in there))
    except EngineError as failed:
        log.error("engine_not_brought_back", engine_id=name, version=before.version, error=str(failed))
        return False


async def _scores_as_before(step: Step, before: Held, canary: Canary, *, load_it: bool) -> bool:
    """Return whether an engine scores as before; where the folder is gone, it does so only if it never loaded the other version."""
    control = step.of.control
    if load_it:
        await load(control, before)
    elif await control.paused():
        return False
    back = same(step.scores, await scores(control, canary), canary.tolerance if load_it else UNCHANGED)
    if back:
        await control.relabel(before.proven)
    return back
