"""The rollout of one version: every engine loads it and proves it by the canary, and it is published or rolled back.

`updates` decides what follows what, and this module carries it out.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Final

import structlog

from evener.client.views import EngineUpdate, PublishAnswer
from evener.engines.port import EngineError, EngineUnreachable, TokenScores
from evener.proto.errors import EvenerError
from evener.proto.fields import shared_fields
from evener.proto.fleet import Canary, PolicyPublished, PolicyRetired, PolicyStaged
from evener.runtime.faults import point
from evener.runtime.tasks import Tasks
from evener.trainer_bridge.canary import UNCHANGED, CanaryFailed, as_scored, compared, prove, same
from evener.trainer_bridge.engines import (
    EngineHung,
    KnownWeights,
    PolicyEngine,
    PolicyEngines,
    has,
    in_time,
    load,
    loadable,
    own_canary,
    scores,
    weights_of,
)
from evener.trainer_bridge.policies import CommitEvent, Policies
from evener.trainer_bridge.updates import (
    COMMITS,
    ENDED_STAGES,
    AnswerKind,
    EngineAnswered,
    EngineStage,
    Update,
    UpdateStage,
    advance,
    begin,
)
from evener.trainer_bridge.weights import Weights, WeightsRefused, check_same_model

log = structlog.get_logger()


class NotUpdatable(EvenerError):
    """Serve the policy with vLLM in development mode, or let this engine leave, to publish versions of the policy."""


class EngineRollout:
    """One engine in a rollout: its weights before, and its scores."""

    def __init__(self, engine: PolicyEngine) -> None:
        """Raises NotUpdatable for an engine whose weights cannot be exchanged."""
        if engine.control is None:
            msg = f"engine {engine.engine_id} of kind {engine.joined.kind} keeps the weights that it was started with"
            raise NotUpdatable(msg)
        self.engine: Final = engine
        self.engine_id: Final = engine.engine_id
        self.control: Final = engine.control
        self.before: KnownWeights | None = None
        """The weights before the update. None: the engine has other weights than it should, and cannot be given those."""
        self.canary: Canary
        """The canary that the engine has scored. Set from READY on."""
        self.scores: list[TokenScores]
        """The scores of the canary before the update. Set from READY on."""
        self.after: list[TokenScores]
        """The scores of the canary after the update. Set from PROVEN on."""
        self.view: EngineUpdate | None = None
        """The result of its proof. None: it has not proven the version."""


class Rollout:
    """Carries out one update of the engines."""

    def __init__(self, staged: PolicyStaged, weights: Weights, policies: Policies, engines: PolicyEngines, write: CommitEvent) -> None:
        """Raises NotUpdatable for an engine whose weights cannot be exchanged."""
        self._staged = staged
        self._weights = weights
        self._current = policies.current(staged.policy)
        """The version before. None: engines have the weights that they started with."""
        self._fleet = engines
        self._write = write
        self._in_log = policies.pending(staged.policy) == staged
        self._canary: Final = staged.canary
        self._engines = {engine.engine_id: EngineRollout(engine) for engine in engines.of(staged.policy)}
        self._loadable: dict[str, asyncio.Task[bool]] = {}
        """Folder to whether it still holds the weights that engines are to load again."""
        self._wrong: dict[str, EvenerError] = {}
        """Engine id to what the engine refused, or why its scores were wrong."""
        self._published: PolicyPublished
        """The record of the publication. Set at the stage PUBLISHING."""

    async def run(self, gate: Callable[[], AbstractContextManager[None]]) -> Update:
        """Carry the update out, and return its end. `gate` is entered at the staging. Raises the errors of a commit."""
        update = begin(self._engines)
        with ExitStack() as stack:
            while update.stage not in ENDED_STAGES:
                if update.stage is UpdateStage.STAGING:
                    stack.enter_context(gate())
                if update.stage in COMMITS:
                    await self._commit(update)
                    update = advance(update)
                else:
                    update = advance(update, await self._answers(update))
            for engine_id in update.leaving:
                await self._fleet.evict(self._engines[engine_id].engine, update.why[engine_id])
        return update

    def trouble(self) -> EvenerError:
        """Return the first engine's error."""
        return next(self._wrong[engine_id] for engine_id in self._engines if engine_id in self._wrong)

    def reason(self) -> str:
        """Return the first engine's error as text."""
        return _why(self.trouble())

    def answer(self, update: Update) -> PublishAnswer:
        """Return the answer to the trainer that publishes, for an update that is published."""
        event = self._published
        warnings = [f"engine {engine_id} has not got it yet: {why}" for engine_id, why in update.why.items()]
        if not (views := self._views()):
            warnings.append(f"no engine samples {event.policy} now; those that join get it")
        if self._weights.tied and views and event.gap is None:
            warnings.append("its embeddings are tied: vLLM for CPU keeps the old output matrix; give logprobs to see it, or save untied")
        return PublishAnswer(**shared_fields(event, PublishAnswer), new=True, engines=views, warnings=tuple(warnings))

    async def _answers(self, update: Update) -> list[EngineAnswered]:
        """Have each engine do the work of its stage; return their answers."""
        async with Tasks() as tasks:
            telling = [tasks.create_task(self._tell(self._engines[one], update.engines[one])) for one in update.at_work]
        return [task.result() for task in telling]

    async def _tell(self, one: EngineRollout, stage: EngineStage) -> EngineAnswered:
        """Have an engine do the work of its stage within its time."""
        doing = {EngineStage.PREPARING: self._prepare, EngineStage.LOADING: self._load, EngineStage.RESTORING: self._restore}[stage]
        try:
            await in_time(one.engine_id, self._fleet.load_seconds, doing(one))
        except EngineUnreachable as silent:
            hung = isinstance(silent, EngineHung)
            return EngineAnswered(engine_id=one.engine_id, answer=AnswerKind.SILENT, why=_why(silent), hung=hung)
        except EvenerError as wrong:
            self._wrong.setdefault(one.engine_id, wrong)
            return EngineAnswered(engine_id=one.engine_id, answer=AnswerKind.WRONG, why=_why(wrong))
        return EngineAnswered(engine_id=one.engine_id)

    async def _prepare(self, one: EngineRollout) -> None:
        """Ensure that an engine has the version before, and score the canary."""
        control = one.control
        try:
            await control.label()
            before = await self._before(one)
        except EngineUnreachable:
            raise
        except EngineError as cause:
            msg = f"engine {one.engine_id} takes no weights: {cause.args[0]}"
            raise NotUpdatable(msg) from cause
        if await has(control, before):
            one.before = before
        elif await loadable(before):
            await load(control, before)
            one.before = before
        elif await control.paused():
            msg = f"it is paused in the middle of an update, and {before.location} has changed: start it again"
            raise EngineUnreachable(msg)
        one.canary = self._canary or await own_canary(control)
        one.scores = await scores(control, one.canary)

    async def _before(self, one: EngineRollout) -> KnownWeights:
        """Return the weights that an engine must have before the update. Raises WeightsRefused if they are of another model."""
        if self._current is not None:
            return weights_of(self._current, one.engine.joined)
        before = await self._fleet.started_with(self._staged.policy, one.control)
        location = self._staged.location
        if Path(before.location).is_absolute() and Path(location) == await asyncio.to_thread(Path(before.location).resolve):
            msg = f"{location} is what engine {one.engine_id} was started with (version 0), which must stay to be loaded again"
            raise WeightsRefused(msg)
        if (first := await self._fleet.first_seen(before.location)) is not None:
            check_same_model(self._weights, first)
        return before

    async def _load(self, one: EngineRollout) -> None:
        """Have an engine load the version and prove it."""
        began, wanted = time.monotonic(), weights_of(self._staged, one.engine.joined)
        paused = await load(one.control, wanted)
        one.after = await scores(one.control, one.canary)
        known = None if one.before is None else one.before.digest
        differs = None if known is None else known != self._staged.digest
        proof = prove(one.engine_id, one.canary, one.scores, one.after, version=wanted.version, differs=differs, tied=self._weights.tied)
        await one.control.relabel(wanted.proven)
        await point("bridge.engine_proven")
        seconds = time.monotonic() - began
        one.view = EngineUpdate(engine_id=one.engine_id, seconds=seconds, paused_seconds=paused, change=proof.change, gap=proof.gap)

    async def _restore(self, one: EngineRollout) -> None:
        """Restore the weights that an engine had. If their folder is gone, that works only for an engine that never loaded the version."""
        before = one.before
        if before is None:
            msg = "it had other weights than those of the version before"
            raise CanaryFailed(msg)
        if there := await self._is_loadable(before):
            await load(one.control, before)
        elif await one.control.paused():
            msg = f"it is paused, and {before.location} has changed"
            raise CanaryFailed(msg)
        if not same(one.scores, await scores(one.control, one.canary), one.canary.tolerance if there else UNCHANGED):
            msg = "it was given the version before again, and does not score the canary as it did"
            raise CanaryFailed(msg)
        await one.control.relabel(before.proven)

    async def _is_loadable(self, before: KnownWeights) -> bool:
        """Return whether a folder can be loaded again. Each folder is read once, for all engines that had it."""
        if before.location not in self._loadable:
            self._loadable[before.location] = asyncio.ensure_future(loadable(before))
        return await asyncio.shield(self._loadable[before.location])

    async def _commit(self, update: Update) -> None:
        """Write the record of a stage."""
        staged = self._staged
        if update.stage is UpdateStage.STAGING:
            if not self._in_log:
                await self._write(staged)
            await point("bridge.policy_staged")
            return
        await point("bridge.policy_loaded")
        if update.stage is UpdateStage.PUBLISHING:
            self._published = self._publication()
            await self._write(self._published)
            await point("bridge.policy_published")
            return
        reason, lost = self.reason(), update.engines_in(EngineStage.LOST)
        await self._write(PolicyRetired(policy=staged.policy, version=staged.version, reason=reason, retired_at=time.time()))
        await point("bridge.policy_retired")
        log.error("policy_rolled_back", policy=staged.policy, version=staged.version, error=reason, lost=lost)

    def _publication(self) -> PolicyPublished:
        canary = self._canary
        if (first := next((one for one in self._engines.values() if one.view is not None), None)) and not compared(first.canary):
            canary = as_scored(first.canary, first.after)  # engines that join later are compared with this one
        return PolicyPublished(
            policy=self._staged.policy,
            version=self._staged.version,
            location=self._staged.location,
            digest=self._staged.digest,
            canary=canary,
            gap=max((view.gap for view in self._views() if view.gap is not None), default=None),
            published_at=time.time(),
        )

    def _views(self) -> tuple[EngineUpdate, ...]:
        return tuple(one.view for one in self._engines.values() if one.view is not None)


def _why(failed: EvenerError) -> str:
    return str(failed.args[0]) if failed.args else type(failed).__name__
